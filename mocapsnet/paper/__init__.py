"""The paper's trained models and what it says of them."""
