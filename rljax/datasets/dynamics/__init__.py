"""What is learnt about an environment's dynamics from its data: models, and the correction of other data by them."""
