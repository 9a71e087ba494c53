"""About what preparing a workload takes, all modes together: for the order in which they are begun.

Seen on an H200 with 16 cores, six at once. Nothing depends on these figures but how long a run
takes, and how many workloads can share a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    memory_gib: float = 12.0
    minutes: float = 2.0


PREPARING = {
    "ST": Cost(minutes=3),
    "DALLE2": Cost(minutes=9),
    "EOS": Cost(minutes=0.5),
    "TKE": Cost(memory_gib=15),
    "VM": Cost(minutes=6),
    "DR-I": Cost(memory_gib=125, minutes=0.5),
    "XLNET-T": Cost(memory_gib=90, minutes=4),
    "MTCG-T": Cost(memory_gib=60, minutes=3),
    "DLRM": Cost(memory_gib=15, minutes=0.5),
    "MBERT": Cost(minutes=2.5),
    "TEFD": Cost(minutes=9),
    "ALNET": Cost(minutes=0.5),
    "DCGAN": Cost(minutes=0.5),
    "BERT": Cost(memory_gib=45),
    "LCNET": Cost(memory_gib=15, minutes=0.5),
    "DR-T": Cost(memory_gib=40, minutes=0.5),
    "MTCG-I": Cost(memory_gib=15),
    "DBV2": Cost(memory_gib=20),
    "BSCG": Cost(memory_gib=60, minutes=3),
    "DGPT2": Cost(memory_gib=40),
    "STCLM": Cost(memory_gib=50),
    "DMLM": Cost(memory_gib=50),
}
USUAL = Cost()


def of(name: str) -> Cost:
    return PREPARING.get(name, USUAL)
