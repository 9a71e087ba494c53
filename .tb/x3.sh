rm -rf /tmp/pg; cp -r . /tmp/pg; cd /tmp/pg; export TORCHINDUCTOR_CACHE_DIR=/tmp/ind
(time ./run build) > $OUT/build.log 2>&1 || { tail -20 $OUT/build.log; exit 1; }
timeout 150 .venv/bin/python .tb/prof.py gpt-fsdp2 > $OUT/fsdp.log 2>&1
grep "host ms" $OUT/*.log
