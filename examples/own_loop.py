"""Your own training loop, with three additions: a reference, a constraint as the loss, and masks."""

import copy

import torch
from torch.utils.data import DataLoader, TensorDataset

from evenprune import DenseReference, GapConstraint, Masks, methods
from evenprune.built_in import dense_and_data
from evenprune.masks import schedule

EPOCHS, PRUNING, SPARSITY = 10, 4, 0.95
torch.manual_seed(0)
dense, data = dense_and_data("digits")
images, labels, groups = data["train"]
loader = DataLoader(TensorDataset(images, labels, groups["digit"]), 64, shuffle=True)

reference = DenseReference.measure(dense, loader)  # what the pruned model is compared with
constraint = GapConstraint(reference, methods.ceag(tolerance=0.02, dual_lr=0.05, k=20))
model = copy.deepcopy(dense)
masks = Masks.of(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

for epoch in range(EPOCHS):
    if epoch < PRUNING:
        masks.prune_(model, schedule(epoch, final=SPARSITY, last=PRUNING - 1))
    constraint.active = epoch >= PRUNING  # the constraints act once pruning has ended
    model.train()
    for x, y, g in loader:
        loss = constraint(model(x), y, g)  # cross-entropy, weighed by the multipliers
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        masks.apply_(model)  # pruned weights stay zero

after = DenseReference.measure(model, loader)
print(masks.summary())
print(f"accuracy {reference.overall_accuracy:.1%} dense, {after.overall_accuracy:.1%} pruned")
print("multipliers", [round(value, 3) for value in constraint.multipliers.flatten().tolist()])
