"""Speed, most of it beside peers: each script writes one or several files of
results/speed/measurements/.
"""
