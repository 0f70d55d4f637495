"""The Python blocks of the five documents that accel was asked for by, with its own package name.

Nothing else is changed but what could never run: a block whose body is only a comment has a statement, a stray colon is
gone, `accelerate.prepare` and `accelerate.backward` are methods of the accelerator (a slip of the first document), and
the names `optim`/`optimizer` and `labels`/`label`, which one document mixes up, are both bound.

The short blocks on saving are put together into one: processes wait between writing and reading, and what reads
`pytorch_model.bin` comes after a save in that format, since safetensors is the default.
"""

INDEX_WITHOUT_PLACEMENT = """
from accel import Accelerator

accelerator = Accelerator(device_placement=False)
# Use the device given by the `accelerator` object.
device = accelerator.device
my_model.to(device)
# Pass every important object (model, optimizer, dataloader) to `accelerator.prepare`
my_model, my_optimizer, my_training_dataloader = accelerator.prepare(
    my_model, my_optimizer, my_training_dataloader
)

for batch in my_training_dataloader:
    my_optimizer.zero_grad()
    inputs, targets = batch
    inputs = inputs.to(device)
    targets = targets.to(device)
    outputs = my_model(inputs)
    loss = my_loss_function(outputs, targets)
    # Just a small change for the backward instruction
    accelerator.backward(loss)
    my_optimizer.step()
"""

INDEX_WITH_PLACEMENT = """
from accel import Accelerator

accelerator = Accelerator()
# Pass every important object (model, optimizer, dataloader) to `accelerator.prepare`
my_model, my_optimizer, my_training_dataloader = accelerator.prepare(
    my_model, my_optimizer, my_training_dataloader
)

for batch in my_training_dataloader:
    my_optimizer.zero_grad()
    inputs, targets = batch
    outputs = my_model(inputs)
    loss = my_loss_function(outputs, targets)
    # Just a small change for the backward instruction
    accelerator.backward(loss)
    my_optimizer.step()
"""

BLOG_WITH_TO_DEVICE = """
import torch
import torch.nn.functional as F
from accel import Accelerator

accelerator = Accelerator()
device = accelerator.device

model = make_model().to(device)
optim = torch.optim.Adam(model.parameters())

dataset = load_dataset('my_dataset')
data = torch.utils.data.DataLoader(dataset, shuffle=True)

model, optim, data = accelerator.prepare(model, optim, data)
optimizer = optim

model.train()
for epoch in range(10):
    for source, targets in data:
        source = source.to(device)
        targets = targets.to(device)

        optimizer.zero_grad()

        output = model(source)
        loss = F.cross_entropy(output, targets)

        accelerator.backward(loss)

        optimizer.step()
"""

BLOG_WITHOUT_TO_DEVICE = """
import torch
import torch.nn.functional as F
from accel import Accelerator

accelerator = Accelerator()

model = make_model()
optim = torch.optim.Adam(model.parameters())

dataset = load_dataset('my_dataset')
data = torch.utils.data.DataLoader(dataset, shuffle=True)

model, optim, data = accelerator.prepare(model, optim, data)
optimizer = optim

model.train()
for epoch in range(10):
    for source, targets in data:
        optimizer.zero_grad()

        output = model(source)
        loss = F.cross_entropy(output, targets)

        accelerator.backward(loss)

        optimizer.step()
"""

BLOG_MAIN_PROCESS = """
if accelerator.is_main_process():
    # Evaluation loop
    evaluated_here = True
"""

BLOG_EVALUATION = """
eval_dataloader = accelerator.prepare(eval_dataloader)
predictions, labels = [], []
for source, targets in eval_dataloader:
    with torch.no_grad():
        output = model(source)

    predictions.append(accelerator.gather(output).cpu().numpy())
    labels.append(accelerator.gather(targets).cpu().numpy())

predictions = np.concatenate(predictions)
labels = np.concatenate(labels)
label = labels

predictions = predictions[:len(eval_dataloader.dataset)]
labels = label[:len(eval_dataloader.dataset)]

metric_compute(predictions, labels)
"""

HINDI_TRAINING = """
from accel import Accelerator

accelerator = Accelerator()

model = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=2)
optimizer = AdamW(model.parameters(), lr=3e-5)

train_dataloader, eval_dataloader, model, optimizer = accelerator.prepare(
    train_dataloader, eval_dataloader, model, optimizer
)

num_epochs = 3
num_training_steps = num_epochs * len(train_dataloader)
lr_scheduler = get_scheduler(
    "linear",
    optimizer=optimizer,
    num_warmup_steps=0,
    num_training_steps=num_training_steps
)

progress_bar = tqdm(range(num_training_steps))

model.train()
for epoch in range(num_epochs):
    for batch in train_dataloader:
        outputs = model(**batch)
        loss = outputs.loss
        accelerator.backward(loss)

        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        progress_bar.update(1)
"""

HINDI_NOTEBOOK = """
from accel import notebook_launcher

notebook_launcher(training_function)
"""

TOUR_PREPARE = """
from accel import Accelerator

accelerator = Accelerator()

model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
    model, optimizer, train_dataloader, lr_scheduler
)
"""

TOUR_EVALUATION = """
validation_dataloader = accelerator.prepare(validation_dataloader)

for inputs, targets in validation_dataloader:
    predictions = model(inputs)
    # Gather all predictions and targets
    all_predictions, all_targets = accelerator.gather_for_metrics((predictions, targets))
    # Example of use with a *Datasets.Metric*
    metric.add_batch(all_predictions, all_targets)
"""

TOUR_KIND = """
from accel import DistributedType

if accelerator.distributed_type == DistributedType.TPU:
    # do something of static shape
    shapes = "static"
else:
    # go crazy and be dynamic
    shapes = "dynamic"
"""

TOUR_PROCESSES = """
if accelerator.is_local_main_process:
    # Is executed once per server
    server.append(1)

from tqdm.auto import tqdm

progress_bar = tqdm(range(args.max_train_steps), disable=not accelerator.is_local_main_process)

if accelerator.is_main_process:
    # Is executed once only
    overall.append(1)

accelerator.wait_for_everyone()
"""

TOUR_SAVING = """
accelerator.wait_for_everyone()
accelerator.save_model(model, save_directory)

accelerator.wait_for_everyone()
accelerator.save_model(model, save_directory, max_shard_size="1GB", safe_serialization=True)

accelerator.wait_for_everyone()
load_checkpoint_in_model(unwrapped_model, save_directory, device_map={"":device})

accelerator.wait_for_everyone()
accelerator.save_model(model, save_directory, safe_serialization=False)
accelerator.wait_for_everyone()
unwrapped_model = accelerator.unwrap_model(model)
path_to_checkpoint = os.path.join(save_directory,"pytorch_model.bin")
unwrapped_model.load_state_dict(torch.load(path_to_checkpoint))
"""

TOUR_PRECISION = """
with accelerator.autocast():
    loss = complex_loss_function(outputs, target)

accelerator.backward(loss)
optimizer.step()

if not accelerator.optimizer_step_was_skipped:
    lr_scheduler.step()
"""

TOUR_ACCUMULATION = """
accelerator = Accelerator(gradient_accumulation_steps=2)
model, optimizer, training_dataloader = accelerator.prepare(model, optimizer, training_dataloader)

for input, label in training_dataloader:
    with accelerator.accumulate(model):
        predictions = model(input)
        loss = loss_function(predictions, label)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
"""

MIGRATION = """
from accel import Accelerator

accelerator = Accelerator()

model, optimizer, training_dataloader, scheduler = accelerator.prepare(
    model, optimizer, training_dataloader, scheduler
)

for batch in training_dataloader:
    optimizer.zero_grad()
    inputs, targets = batch
    outputs = model(inputs)
    loss = loss_function(outputs, targets)
    accelerator.backward(loss)
    optimizer.step()
    scheduler.step()
"""
