"""What users do with a data set: check it, summarise it, preprocess it, corrupt it, and correct its dynamics."""
