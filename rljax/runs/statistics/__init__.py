"""How good are the policies of one run?"""
