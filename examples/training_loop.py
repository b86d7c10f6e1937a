"""A training loop of one's own: thirty lines, no fit()."""

import sys

import torch

import mocapsnet as mc
from mocapsnet.data.augment import crop, crop_offsets, standardise, to_pixels

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
torch.manual_seed(0)
digits = mc.data.load("mnist6k")
model = mc.MoCapsNet(digits.image_shape, digits.classes, blocks=1, capsules=8, channels=32)
adam = torch.optim.Adam(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(0)

for step in range(1, steps + 1):
    chosen = torch.randint(len(digits.train.labels), (32,), generator=generator)
    labels = digits.train.labels[chosen]
    pixels = to_pixels(crop(digits.train.images[chosen], crop_offsets(32, generator)))
    output = model(standardise(pixels), labels)
    loss = mc.capsule_loss(output, labels, pixels)
    adam.zero_grad()
    loss.backward()
    adam.step()
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.4f}")

with torch.no_grad():
    seen = model(standardise(to_pixels(digits.test.images))).lengths.argmax(1)
print(f"test accuracy {(seen == digits.test.labels).float().mean():.2%}")
