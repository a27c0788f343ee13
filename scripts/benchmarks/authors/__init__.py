"""Speed of learning from data and new experience, beside the code of each method's authors."""
