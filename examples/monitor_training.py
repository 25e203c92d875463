"""Watch the law appear while a network is trained, in a plain loop; the training is bit by bit what it would be without."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import layerlaw as ll
from layerlaw.advice import course_report
from layerlaw.data import load

torch.manual_seed(0)
x, y = load().balanced(60).resized(10).tensors(flat=True)
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
layers = [module for _ in range(6) for module in (nn.Linear(100, 100), nn.BatchNorm1d(100), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(100, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

# to= takes a SummaryWriter, a wandb run, mlflow, or as here a function; records and the page are written into the folder
monitor = ll.Monitor(model, (x, y), every=5, folder="run", to=lambda values, step: print(step, values["layerlaw/rho"]))
for epoch in range(31):
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    monitor(epoch)
    if monitor.should_stop and monitor.record.accuracy > 0.99:
        break
monitor.finish()
print(monitor, "\n", monitor.record.law())
print(course_report(monitor.records))  # does the nearest class center come to agree with the network?
course_report(monitor.records).page("course.html")  # mismatch of every layer over the epochs, accuracy, tables
