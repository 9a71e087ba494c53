set -x
rm -rf /tmp/pg; cp -r . /tmp/pg; cd /tmp/pg; export TORCHINDUCTOR_CACHE_DIR=/tmp/ind
(time ./run build) > $OUT/build.log 2>&1 || { tail -20 $OUT/build.log; exit 1; }
go() { t=$1; shift; PORT=$((20000+RANDOM%20000)); name=$(echo $*|tr ' /=' '___'); for r in 0 1; do PYTHONFAULTHANDLER=1 RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT timeout -s ABRT -k 5 $t .venv/bin/python .tb/x1.py $* > /tmp/o.$name.$r 2>&1 & p[$r]=$!; done; wait ${p[0]} ${p[1]}; echo "=== $* rc" >> $OUT/all.log; tail -c 5000 /tmp/o.$name.0 >> $OUT/all.log; echo "--- rank1" >> $OUT/all.log; tail -c 4000 /tmp/o.$name.1 >> $OUT/all.log; }
go 60 versions
go 80 fsdp &
go 60 tp 16 &
wait
export NCCL_GRAPH_REGISTER=0
go 60 tp 16
unset NCCL_GRAPH_REGISTER
go 40 tp 65536 
go 40 mixed
go 25 destroy
go 40 destroy2
go 40 symm
go 50 dev
cat $OUT/all.log
