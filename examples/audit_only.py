"""Audit predictions that you have already. No torch, no training: arrays in, a verdict out."""

import numpy as np

import evenprune

# What you would load from your own evaluation: 4,000 labels, two models' answers, one group per sample.
random = np.random.default_rng(0)
labels = random.integers(0, 10, 4000)
region = random.choice(["north", "south", "west"], 4000, p=[0.5, 0.3, 0.2])
dense = np.where(random.random(4000) < 0.95, labels, (labels + 1) % 10)
harm = np.where(region == "west", 0.15, 0.02)  # pruning broke many more answers in the west
pruned = np.where(random.random(4000) < harm, (labels + 2) % 10, dense)

audit = evenprune.audit(labels=labels, dense=dense, pruned=pruned, groups={"region": region}, tolerance=0.02)
print(audit)
print(f"{audit.verdict}: {audit.worst.group} lost {audit.worst.excess_gap:.1%} more than the average")

try:
    audit.check()  # in a deployment script: stop here
except evenprune.GroupHarmed:
    print("Not deployed.")
