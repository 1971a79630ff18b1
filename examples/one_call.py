"""One call: measure the dense model, prune, fine-tune under a constraint, audit. Run it twice: it resumes."""

from functools import partial

from torch.optim import SGD

import evenprune
from evenprune import methods
from evenprune.built_in import dense_and_data
from evenprune.recipe import Recipe

model, data = dense_and_data("digits")  # your trained model; (inputs, labels, groups) twice

result = evenprune.prune(
    model,
    train=data["train"],
    test=data["test"],
    groups="digit",
    sparsity=0.95,
    method=[methods.nft(), methods.ceag(tolerance=0.02, dual_lr=0.05, k=20)],
    seeds=range(2),
    recipe=Recipe(epochs=12, pruning_epochs=4, batch_size=64, optimizer=partial(SGD, lr=0.02, momentum=0.9)),
    folder="runs/digits-95",
)

print(result)  # the methods side by side
print(result.audit)  # the first run on the test data
pruned = result.models["CEAG, seed 0"]  # a plain torch module, pruned weights at zero
print(result.masks["CEAG, seed 0"].summary())
print(result.save("runs/digits-95/comparison.html"))
