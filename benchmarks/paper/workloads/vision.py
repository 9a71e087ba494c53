"""The vision models: torchvision's, timm's and effdet's."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import nn

from benchmarks.harness.program import Sample, Tensors
from pygraph.demo.models import MODEL_SEED


def alexnet(tiny: bool) -> nn.Module:
    models = import_module("torchvision.models")
    return models.alexnet(num_classes=8) if tiny else models.alexnet()


def densenet121(tiny: bool) -> nn.Module:
    models = import_module("torchvision.models")
    if tiny:
        shape = {"growth_rate": 4, "block_config": (2, 2), "num_init_features": 8, "num_classes": 8}
    return models.DenseNet(**shape) if tiny else models.densenet121()


def lcnet(tiny: bool) -> nn.Module:
    options = {"num_classes": 8} if tiny else {}
    model: nn.Module = import_module("timm").create_model("lcnet_050", pretrained=False, **options)
    device = torch.get_default_device()
    generator = torch.Generator("cpu").manual_seed(MODEL_SEED)
    images = torch.randn(32, 3, *[32 if tiny else 224] * 2, generator=generator, device="cpu")
    _settle(model.to(device), images.to(device))
    return model


@torch.no_grad()
def _settle(model: nn.Module, images: Any) -> None:
    """Gives the norms the statistics of these images: as they are made, they let the signal fade
    until the results are all bias, and stale inputs would not show in them."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    model.train()(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def classify(model: Any, images: Any) -> Tensors:
    return (model(images),)


# ------------------------------------------------------------------------------ Mask R-CNN

CANDIDATES = 60
"""Scores above the threshold, before overlapping boxes of one class are merged."""
_DAMPING = 0.2
_OBJECTNESS_SPREAD, _SCORE_SPREAD = 2.0, 4.0
"""Standard deviations of the logits: wide enough that rounding hardly changes their order."""


def mask_rcnn(tiny: bool) -> nn.Module:
    """torchvision's, with a backbone of frozen norms as its pretrained one has, made to detect."""
    detection = import_module("torchvision.models.detection")
    options: dict[str, Any] = {"num_classes": 91}
    height, width = 800, 1066
    if tiny:
        height, width = 64, 96
        options = {"num_classes": 5, "min_size": 64, "max_size": 128}
        options |= {"rpn_post_nms_top_n_test": 50}
    backbone = detection.backbone_utils.resnet_fpn_backbone(
        backbone_name="resnet18" if tiny else "resnet50", weights=None
    )
    for name, norm in backbone.body.named_modules():
        if name.endswith("bn2" if tiny else "bn3"):
            norm.weight.mul_(_DAMPING)
    device = torch.get_default_device()
    model: nn.Module = detection.MaskRCNN(backbone, **options).to(device).eval()
    generator = torch.Generator("cpu").manual_seed(MODEL_SEED)
    image = torch.rand(3, height, width, generator=generator, device="cpu")
    _calibrate(model, image.to(device), CANDIDATES // (6 if tiny else 1))
    return model


@torch.no_grad()
def _calibrate(model: Any, image: Any, candidates: int) -> None:
    """Spreads objectness and class scores, and puts the threshold below the best `candidates`:
    the scores of random weights are all alike, and nothing would be detected."""
    objectness, classes = model.rpn.head.cls_logits, model.roi_heads.box_predictor.cls_score
    model.roi_heads.score_thresh = 1.0
    logits = torch.cat([level.flatten() for level in _outputs(model, objectness, image)])
    _spread(objectness, logits[:, None], _OBJECTNESS_SPREAD)
    (logits,) = _outputs(model, classes, image)
    _spread(classes, logits, _SCORE_SPREAD)
    (logits,) = _outputs(model, classes, image)
    scores = logits.softmax(1)[:, 1:].flatten()
    model.roi_heads.score_thresh = float(scores.topk(candidates).values[-1])


def _outputs(model: Any, layer: Any, image: Any) -> list[Any]:
    seen: list[Any] = []
    handle = layer.register_forward_hook(lambda _, __, output: seen.append(output))
    try:
        model([image])
    finally:
        handle.remove()
    return seen


def _spread(layer: Any, logits: Any, spread: float) -> None:
    """Every column of the logits gets mean 0 and this standard deviation."""
    factor = spread / logits.std(0)
    layer.weight.mul_(factor.view(-1, *[1] * (layer.weight.dim() - 1)))
    layer.bias.sub_(logits.mean(0)).mul_(factor)


def detect(model: Any, image: Any) -> Tensors:
    found = model([image])[0]
    return found["boxes"], found["labels"], found["scores"], found["masks"]


def best_detections(results: Tensors) -> Tensors:
    """How many there are, the ten best scores, and the sides of squares as large as their boxes,
    sorted: rounding can swap neighbours, and change which of the last are found."""
    boxes, _, scores, _ = results
    sides = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).clamp(min=0).sqrt()
    best = scores.argsort(descending=True)[:10]
    padding = (0, 10 - len(best))
    return (
        scores.new_tensor([float(len(scores))]),
        nn.functional.pad(scores[best], padding),
        nn.functional.pad(sides[best].sort(descending=True).values, padding),
    )


def sample_scene(height: int, width: int) -> Sample:
    return lambda generator, _: (torch.rand(3, height, width, generator=generator),)


# ------------------------------------------------------------------------------ EfficientDet

BOXES = 8


def _efficientdet_config(tiny: bool) -> Any:
    config = import_module("effdet").get_efficientdet_config("tf_efficientdet_d1")
    if tiny:
        config.update({"backbone_name": "tinynet_e", "image_size": (256, 256), "num_classes": 5})
        config.update({"fpn_channels": 16, "fpn_cell_repeats": 1, "box_class_repeats": 1})
    return config


def efficientdet(tiny: bool) -> nn.Module:
    return import_module("effdet").create_model_from_config(
        _efficientdet_config(tiny), bench_task="train", pretrained_backbone=False
    )


def detection_loss(model: Any, image: Any, positives: Any, *labels: Any) -> Tensors:
    """The only result is the loss, which the model makes. `labels`: the classes of the anchors of
    every level, and then their boxes."""
    levels = len(labels) // 2
    target = {"label_num_positives": positives}
    for level in range(levels):
        target[f"label_cls_{level}"] = labels[level]
        target[f"label_bbox_{level}"] = labels[levels + level]
    return (model(image, target)["loss"],)


def sample_objects(tiny: bool) -> Sample:
    """One image and what the anchors see of its boxes: TorchBench's loader labels them, too."""

    def sample(generator: torch.Generator, _: torch.device) -> Tensors:
        source = import_module("effdet.anchors")
        config = _efficientdet_config(tiny)
        with torch.device("cpu"):
            labeler = source.AnchorLabeler(source.Anchors.from_config(config), config.num_classes)
        side = config.image_size[0]
        image = torch.randn(1, 3, side, side, generator=generator)
        corners = torch.rand(BOXES, 2, generator=generator) * 0.6 * side
        extent = (0.1 + 0.3 * torch.rand(BOXES, 2, generator=generator)) * side
        kinds = torch.randint(1, config.num_classes + 1, (BOXES,), generator=generator)
        boxes = torch.cat([corners, corners + extent], 1)
        classes, targets, positives = labeler.batch_label_anchors([boxes], [kinds])
        return (image, positives, *classes, *targets)

    return sample
