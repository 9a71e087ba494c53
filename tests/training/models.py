"""All workloads. Between them they use what training programs use around a model: optimisers of
seven kinds, schedules, clipping, accumulation, hooks, checkpoints, autocast, kept gradients."""

from __future__ import annotations

from training import generative, graphs, language, recurrent, vision
from training.workload import Workload

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "mlp",
            vision.mlp,
            "MLP with dropout; SGD with Nesterov momentum, hooks on gradients",
            graphs=2,
        ),
        Workload(
            "resnet18",
            vision.resnet18,
            "ResNet-18 with BatchNorm; SGD with momentum, cosine schedule",
            graphs=2,
        ),
        Workload(
            "vit",
            vision.vit,
            "ViT with dropout in attention; AdamW, warm-up, gradients zeroed in place",
            graphs=2,
        ),
        Workload(
            "unet",
            vision.unet,
            "U-Net under autocast with GradScaler; Adam",
            graphs=2,
        ),
        Workload(
            "gpt2",
            language.gpt2,
            "GPT-2 with tied embeddings; AdamW, accumulation over two batches, clipping, schedule",
            graphs=2,
        ),
        Workload(
            "bert",
            language.bert,
            "BERT, masked tokens, each layer checkpointed inside the compiled model; Adam",
            graphs=2,
        ),
        Workload(
            "bert-reentrant",
            language.bert_reentrant,
            "BERT whose compiled layers run in reentrant checkpoints; Adam",
            graphs=3,
        ),
        Workload(
            "lstm",
            recurrent.lstm,
            "LSTM language model, state carried from step to step; SGD, clipping",
            graphs=2,
        ),
        Workload(
            "rl",
            recurrent.reinforce,
            "policy gradient on a cart with a pole: .item() decides the control flow; Adam",
            graphs=2,
        ),
        Workload(
            "dcgan",
            generative.dcgan,
            "DCGAN: two models, two Adam optimisers, three losses per step",
            graphs=6,
        ),
        Workload(
            "vae",
            generative.vae,
            "VAE with rsample noise; RMSprop",
            graphs=2,
        ),
        Workload(
            "dlrm",
            graphs.dlrm,
            "DLRM with embedding bags; Adagrad",
            graphs=2,
        ),
        Workload(
            "gnn",
            graphs.gnn,
            "message passing with index_add and scatter_reduce; Adamax",
            graphs=2,
        ),
    )
}
