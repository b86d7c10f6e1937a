"""The paper's evidence, regenerated: recipes, a sweep over them, its claims, tables, figures and report."""
