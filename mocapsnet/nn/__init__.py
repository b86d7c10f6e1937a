"""The network's modules, in the order an image meets them."""
