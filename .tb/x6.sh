S=$(date +%s); el() { echo "[$(( $(date +%s) - S ))s] $*"; }
rm -rf /tmp/pg; cp -r . /tmp/pg; cd /tmp/pg; export TORCHINDUCTOR_CACHE_DIR=/tmp/ind
(time ./run build) > $OUT/build.log 2>&1 || { tail -20 $OUT/build.log; exit 1; }
el built
PY=.venv/bin/python
$PY .tb/r.py 110 tensor_parallel_inference tensor_parallel_training sequence_parallel_training ddp ddp_accumulates fsdp whole_step whole_step_compared whole_step_in_place pipeline_stage > $OUT/sc2.log 2>&1 &
T=$!
M="--modes default,reduce-overhead,pygraph,floor"
W="llama-decode-1 gpt-fsdp2 gpt-ddp gpt-1 llama-decode-16 llama-2"
for w in $W; do P=$((20000+RANDOM%20000)); for r in 0 1; do RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$P timeout -k 2 115 $PY -m benchmarks.gpus.rank $w --out /tmp/c.$w.$r --compile-only $M > /tmp/c.$w.$r.log 2>&1 & C="$C $!"; done; done
wait $C; el compiled
wait $T; el tested
timeout 260 $PY -m benchmarks gpus --workloads $(echo $W | tr ' ' ,) $M --seconds 2 --no-side-by-side --out $OUT/gpus.json > $OUT/bench.log 2>&1
el benched
for w in gpt-ddp gpt-fsdp2; do P=$((20000+RANDOM%20000)); for r in 0 1; do RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$P timeout -k 2 40 $PY -m benchmarks.gpus.rank $w --out /tmp/l.$w.$r --steps 200 > /tmp/l.$w.$r.log 2>&1 & done; done; wait; el long; cat /tmp/l.*.[01] 2>/dev/null | tail -c 2500
cat $OUT/bench.log | tail -c 5000; for f in /tmp/c.*.0.log; do echo $f; tail -c 300 $f; done | tail -c 2500
