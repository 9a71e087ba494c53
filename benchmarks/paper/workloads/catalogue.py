"""The 25 workloads, in the order of the paper's table 1."""

from __future__ import annotations

from functools import partial

from benchmarks.paper.workloads import inputs, language, multimodal, numeric, speech, vision
from benchmarks.paper.workloads.inputs import sized
from benchmarks.paper.workloads.workload import FP32, FP64, Workload

_TODAY = "the library's release of today, under bf16 autocast"
_AUTOCAST = "under bf16 autocast"
_DALLE2 = (
    *("torchvision", "einops", "kornia", "rotary_embedding_torch", "resize_right", "x_clip"),
    *("coca_pytorch", "ftfy", "clip", "dalle2_pytorch"),
)

_hf_inference = partial(Workload, suite="huggingface", training=False, needs=("transformers",))
_hf_training = partial(
    Workload, suite="huggingface", training=True, needs=("transformers",), random=True
)
_tb_inference = partial(Workload, suite="torchbench", training=False, needs=("torchbench",))
_tb_training = partial(
    Workload, suite="torchbench", training=True, needs=("torchbench",), random=True
)

_ROWS = (
    _hf_inference(
        "XLNET-I",
        "XLNetLMHeadModel",
        batch=1,
        build=language.xlnet,
        call=language.logits,
        sample=sized(inputs.tokens, (1, 512, 32000), (1, 8, 64)),
        source="transformers XLNetLMHeadModel(XLNetConfig(use_mems_eval=False))",
        deviation=f"{_TODAY}; no memories are returned",
    ),
    _tb_inference(
        "MMC",
        "torch_multimodal_clip",
        batch=1,
        build=multimodal.clip,
        call=multimodal.embed,
        sample=sized(multimodal.sample_image_and_texts, (224, 32, 49408), (32, 3, 64)),
        source="torchmultimodal clip_vit_b32()",
        deviation=f"{_AUTOCAST}; a drawn image and texts in place of TorchBench's",
        needs=("torchvision", "torchmultimodal.models.clip.model"),
    ),
    _tb_inference(
        "ST",
        "speech_transformer",
        batch=1,
        build=speech.speech_transformer,
        call=speech.recognize,
        sample=sized(speech.sample_recordings, (10, 204, 320, 1014, 21), (3, 12, 8, 16, 5)),
        source="torchbenchmark/models/speech_transformer",
        deviation=f"{_AUTOCAST}; drawn recordings: the shapes of TorchBench's, other lengths; "
        "its batch of 1 is a batch of 10 recordings",
    ),
    _tb_inference(
        "DALLE2",
        "DALLE2_pytorch",
        batch=1,
        build=multimodal.dalle2,
        call=multimodal.draw,
        sample=sized(inputs.tokens, (1, 256, 49408), (1, 256, 64)),
        source="dalle2_pytorch DALLE2, configured as torchbenchmark/canary_models/DALLE2_pytorch",
        deviation=f"{_AUTOCAST}; random weights in CLIP, and in the U-Nets' last layers, which are "
        "made as zeros",
        needs=_DALLE2,
        random=True,
    ),
    _tb_inference(
        "EOS",
        "pyhpc_equation_of_state",
        batch=1_048_576,
        build=numeric.equation_of_state,
        call=numeric.one_result,
        sample=sized(numeric.sample_water, (1_048_576,), (64,)),
        precision=FP64,
        source="torchbenchmark/models/pyhpc_equation_of_state",
        deviation="other drawn inputs in every iteration",
    ),
    _tb_inference(
        "TKE",
        "pyhpc_turbulent_kinetic_energy",
        batch=1_048_576,
        build=numeric.kinetic_energy,
        call=numeric.integrate,
        sample=sized(numeric.sample_sea, (1_048_576,), (512,)),
        precision=FP64,
        source="torchbenchmark/models/pyhpc_turbulent_kinetic_energy",
        deviation="other drawn inputs in every iteration",
    ),
    _tb_inference(
        "VM",
        "vision_maskrcnn",
        batch=1,
        build=vision.mask_rcnn,
        call=vision.detect,
        sample=sized(vision.sample_scene, (800, 1066), (64, 96)),
        precision=FP32,
        source="torchvision MaskRCNN(resnet_fpn_backbone('resnet50'))",
        deviation="random weights, scaled so that they detect something, and noise as images: "
        "TorchBench has pretrained weights and photographs",
        needs=("torchvision",),
        compared=vision.best_detections,
    ),
    _tb_inference(
        "DR-I",
        "nvidia_deeprecommender",
        batch=8192,
        build=numeric.recommender,
        call=numeric.one_result,
        sample=sized(numeric.sample_ratings, (8192, numeric.ITEMS), (3, 50)),
        source="torchbenchmark/models/nvidia_deeprecommender",
        deviation=_AUTOCAST,
    ),
    _hf_training(
        "XLNET-T",
        "XLNetLMHeadModel",
        batch=8,
        build=language.xlnet,
        call=language.logits,
        sample=sized(inputs.tokens, (8, 512, 32000), (2, 8, 64)),
        source="transformers XLNetLMHeadModel(XLNetConfig(use_mems_eval=False))",
        deviation=_TODAY,
    ),
    _hf_training(
        "MTCG-T",
        "MT5ForConditionalGeneration",
        batch=16,
        build=language.t5,
        call=language.sequence_logits,
        sample=sized(inputs.two_texts, (16, 128, 250112), (2, 8, 64)),
        source="transformers MT5ForConditionalGeneration(MT5Config(use_cache=False))",
        deviation=_TODAY,
    ),
    _tb_inference(
        "DLRM",
        "dlrm",
        batch=2048,
        build=numeric.dlrm,
        call=numeric.click,
        sample=sized(numeric.sample_clicks, (2048, 512, 1_000_000, 100), (4, 8, 50, 3)),
        source="torchbenchmark/models/dlrm",
        deviation=f"{_AUTOCAST}; always 100 indices per lookup: TorchBench drops the few doubles",
    ),
    _hf_inference(
        "MBERT",
        "MobileBertForQuestionAnswering",
        batch=128,
        build=language.mobilebert,
        call=language.spans,
        sample=sized(inputs.tokens, (128, 128, 30522), (2, 8, 64)),
        source="transformers MobileBertForQuestionAnswering(MobileBertConfig())",
        deviation=_TODAY,
    ),
    _tb_training(
        "TEFD",
        "timm_efficientdet",
        batch=1,
        build=vision.efficientdet,
        call=vision.detection_loss,
        sample=vision.sample_objects,
        source="effdet create_model('tf_efficientdet_d1', bench_task='train')",
        deviation=f"{_AUTOCAST}; random weights, and noise with {vision.BOXES} drawn boxes: "
        "TorchBench has a pretrained backbone and photographs; Inductor's comprehensive_padding is "
        "off in all modes: gradients of torch 2.11 depended on memory that nothing wrote, which "
        "fits pytorch issue 194281",
        needs=("torchvision", "timm", "effdet"),
        inductor={"comprehensive_padding": False},
    ),
    _tb_inference(
        "ALNET",
        "alexnet",
        batch=2,
        build=vision.alexnet,
        call=vision.classify,
        sample=sized(inputs.images, (2, 224), (2, 64)),
        source="torchvision alexnet()",
        deviation=_TODAY,
        needs=("torchvision",),
    ),
    _tb_training(
        "DCGAN",
        "dcgan",
        batch=32,
        build=numeric.discriminator,
        call=numeric.one_result,
        sample=sized(inputs.images, (32, 64), (2, 64)),
        precision=FP32,
        source="torchbenchmark/models/dcgan",
        deviation="the discriminator only, in fp32: its own loss refuses autocast",
        random=False,
    ),
    _tb_training(
        "BERT",
        "BERT_pytorch",
        batch=16,
        build=language.bert,
        call=language.both_heads,
        sample=sized(language.sample_sentence_pairs, (16, 128, language.BERT_WORDS), (2, 12, 64)),
        source="torchbenchmark/models/BERT_pytorch",
        deviation=f"{_AUTOCAST}; sentences drawn like those of TorchBench's corpus",
    ),
    Workload(
        "LCNET",
        "lcnet_050",
        "timm",
        training=False,
        batch=256,
        build=vision.lcnet,
        call=vision.classify,
        sample=sized(inputs.images, (256, 224), (2, 32)),
        source="timm create_model('lcnet_050')",
        deviation=f"{_TODAY}; random weights, with norms that have seen some noise",
        needs=("torchvision", "timm"),
    ),
    _tb_training(
        "DR-T",
        "nvidia_deeprecommender",
        batch=256,
        build=numeric.recommender,
        call=numeric.one_result,
        sample=sized(numeric.sample_ratings, (256, numeric.ITEMS), (3, 50)),
        source="torchbenchmark/models/nvidia_deeprecommender",
        deviation=_AUTOCAST,
    ),
    _tb_inference(
        "DNET",
        "densenet121",
        batch=64,
        build=vision.densenet121,
        call=vision.classify,
        sample=sized(inputs.images, (64, 224), (2, 32)),
        source="torchvision densenet121()",
        deviation=_TODAY,
        needs=("torchvision",),
    ),
    _hf_inference(
        "MTCG-I",
        "MT5ForConditionalGeneration",
        batch=16,
        build=language.t5,
        call=language.sequence_logits,
        sample=sized(inputs.two_texts, (16, 128, 250112), (2, 8, 64)),
        source="transformers MT5ForConditionalGeneration(MT5Config(use_cache=False))",
        deviation=f"{_TODAY}; the logits are the only result",
    ),
    _hf_inference(
        "DBV2",
        "DebertaV2ForQuestionAnswering",
        batch=1,
        build=language.deberta_v2,
        call=language.spans,
        sample=sized(inputs.tokens, (1, 512, 128100), (1, 8, 64)),
        source="transformers DebertaV2ForQuestionAnswering(DebertaV2Config())",
        deviation=_TODAY,
    ),
    _hf_training(
        "BSCG",
        "BlenderbotSmallForConditionalGeneration",
        batch=64,
        build=language.blenderbot,
        call=language.sequence_logits,
        sample=sized(inputs.two_texts, (64, 128, 50265), (2, 8, 64)),
        source="transformers BlenderbotSmallForConditionalGeneration(use_cache=False)",
        deviation=_TODAY,
    ),
    _hf_training(
        "DGPT2",
        "DistillGPT2",
        batch=16,
        build=language.distil_gpt2,
        call=language.masked_logits,
        sample=sized(inputs.tokens_and_mask, (16, 512, 50257), (2, 8, 64)),
        source="transformers GPT2LMHeadModel(GPT2Config(n_layer=6, use_cache=False))",
        deviation=f"{_TODAY}; with a mask of ones",
    ),
    _hf_training(
        "STCLM",
        "Speech2Text2ForCausalLM",
        batch=256,
        build=speech.speech_decoder,
        call=numeric.one_result,
        sample=sized(inputs.tokens, (256, 128, 10_000), (2, 8, 64)),
        source="transformers Speech2TextDecoder with a tied head",
        deviation="rebuilt, as the class is gone from transformers; under bf16 autocast",
    ),
    _hf_training(
        "DMLM",
        "DebertaForMaskedLM",
        batch=8,
        build=language.deberta,
        call=language.logits,
        sample=sized(inputs.tokens, (8, 512, 50265), (2, 8, 64)),
        source="transformers DebertaForMaskedLM(DebertaConfig())",
        deviation=f"{_TODAY}, in which the attention's biases are added: with fp32 biases the "
        "library fails under autocast",
    ),
)

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ROWS}

GROUPS = ("huggingface", "torchbench", "timm", "inference", "training")
_ALL = "all"


def find(names: str | None) -> list[Workload]:
    """The workloads of a list with commas, of names and groups in any case, in the table's order;
    all if there is no list. Every name must be known."""
    given = [name.strip() for name in (names or _ALL).split(",")]
    known = {_ALL, *GROUPS, *(name.casefold() for name in WORKLOADS)}
    for name in given:
        if name.casefold() not in known:
            there = ", ".join((*WORKLOADS, *GROUPS, _ALL))
            raise KeyError(f"no workload or group {name!r}: there are {there}")
    asked = {name.casefold() for name in given}
    return [
        workload
        for workload in WORKLOADS.values()
        if {_ALL, workload.name.casefold(), *workload.groups} & asked
    ]
