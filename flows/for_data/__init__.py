"""What the data makes of a recipe: the name of its data set, and sizes that are left to it."""
