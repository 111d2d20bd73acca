"""Residual networks (He, Zhang, Ren, Sun, CVPR 2016) for measurements: the sizes count, not what they learn."""

import torch
from torch import nn

# Blocks of each stage. resnet50: 25,557,032 parameters in 161 tensors. small: 0.47 million in 59, for machines without time.
STAGES = {"resnet50": ((64, 3), (128, 4), (256, 6), (512, 3)), "small": ((16, 1), (32, 2), (64, 2))}


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolution beside a shortcut; four times as many channels come out as it is wide."""

    def __init__(self, channels, width, stride):
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out))
        self.shortcut = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def residual_network(name, classes=1000):
    """KeyError: no such name."""
    stages = STAGES[name]
    channels = stages[0][0]
    layers = [nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True),
              nn.MaxPool2d(3, 2, 1)]
    for index, (width, blocks) in enumerate(stages):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, 2 if index > 0 and block == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
