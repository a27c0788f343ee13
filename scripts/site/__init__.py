"""The site, made of the pages in docs/ and results/."""
