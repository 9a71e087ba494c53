rm -rf /tmp/pg; cp -r . /tmp/pg; cd /tmp/pg; export TORCHINDUCTOR_CACHE_DIR=/tmp/ind
(time ./run build) > $OUT/build.log 2>&1 || { tail -20 $OUT/build.log; exit 1; }
R() { RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000+RANDOM%9999)) timeout 150 .venv/bin/python -m benchmarks.gpus.rank $* ; }
M="--modes default,reduce-overhead,pygraph,floor"
R llama-decode-1 --out /tmp/d1.json --compile-only $M > $OUT/d1.log 2>&1 &
R gpt-1 --out /tmp/g1.json --compile-only $M > $OUT/g1.log 2>&1 &
wait
R llama-decode-1 --out $OUT/d1.json --seconds 2 $M >> $OUT/d1.log 2>&1
R gpt-1 --out $OUT/g1.json --seconds 2 $M >> $OUT/g1.log 2>&1
.venv/bin/python - <<'P'
import json,os,statistics as s
for n in ("d1","g1"):
    try: d=json.load(open(os.environ["OUT"]+f"/{n}.json"))
    except Exception as e: print(n,e); continue
    for m in d: print(n, m["mode"], m["correct"], m["error"], *(round(s.median(m[k])) if m[k] else None for k in ("latency_us","host_us","pipelined_us")), m["peak_mib"], m["calls"], m["replays"], m["fallbacks"])
P
tail -3 $OUT/d1.log
