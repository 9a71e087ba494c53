rm -rf /tmp/pg; cp -r . /tmp/pg; cd /tmp/pg; export TORCHINDUCTOR_CACHE_DIR=/tmp/ind
(time ./run build) > $OUT/build.log 2>&1 || { tail -20 $OUT/build.log; exit 1; }
go() { t=$1; shift; PORT=$((20000+RANDOM%20000)); name=$(echo $*|tr ' /=' '___'); for r in 0 1; do PYTHONFAULTHANDLER=1 RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT timeout -s ABRT -k 5 $t .venv/bin/python .tb/x1.py $* > /tmp/o.$name.$r 2>&1 & p[$r]=$!; done; wait ${p[0]} ${p[1]}; (echo "=== $*"; tail -c 6000 /tmp/o.$name.0; echo "--- rank1"; tail -c 5000 /tmp/o.$name.1) >> $OUT/all.log; }
sc() { n=$1; t=$2; shift; shift; .venv/bin/python .tb/r.py $t $* > $OUT/sc$n.log 2>&1; }
sc 1 150 sums several_sizes measured group_of_one two_groups group_ends capture_refused proof_failed proof_failed_at_first memory_runs_out_while_linking memory_runs_out_in_a_run no_memory_for_copies more_repeats other_calls one_without &
sc 2 150 tensor_parallel_inference tensor_parallel_training sequence_parallel_training ddp ddp_accumulates fsdp whole_step whole_step_in_place &
(sc 3 60 dies_while_capturing; sc 4 60 dies_between_runs) &
(go 40 dev; go 60 fsdp; go 40 destroy2) &
wait
cat $OUT/all.log | tail -c 9000
