# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2016,SC2086,SC2154 # expanded in the ranks; words; CLUSTER, BERTH and TESTS are given
# Of net.py: run on the login node of tests/cluster/cluster.py. Start ranks through each launcher; each rank
# writes its environment to $NET/LAUNCHER.RANK. Print all these files to standard output.
exec 3>&1 >&2
# Options were renamed since the base was recorded.
launcher=--engine endpoint=--head
case $("$BERTH" run --help) in *--launcher*) launcher=--launcher endpoint=--rdzv-endpoint ;; esac
share=$CLUSTER/share
export NET=$share/net HOME=$share/home
mkdir -p "$NET" "$HOME" "$share/bin"
cd "$share" || exit
on() { nsenter -t "$(cat "$CLUSTER/pid/$1")" -a --wd="$share" "${@:2}"; }
until_there() { for _ in $(seq 600); do [ -e "$1" ] && return; sleep 0.1; done; echo "no $1"; }
say() { echo "cat /proc/\$\$/environ >\"$NET/$1.\$RANK\""; }
batch() { # NAME COMMAND
	printf '#!/bin/bash\ncd %s\n%s\n' "$share" "$2" >"$1.sh"
	timeout 60 sbatch --wait -N2 -w n1,n2 --ntasks-per-node=2 --mem-per-cpu=10 -o "$share/$1.out" "$1.sh"
	echo $? >"$NET/$1.code"; cat "$1.out"
}
batch srun "$BERTH run $launcher srun --ranks-per-node 2 -- sh -c '$(say srun)'"
batch srun-gpus "$BERTH run $launcher srun -n 4 --gpus-visible own -- sh -c '$(say srun-gpus)'"
batch srun-per-node "$BERTH run $launcher srun --per-node -- sh -c 'RANK=\$PET_NODE_RANK; $(say srun-per-node)'"
batch exec-srun "srun $BERTH exec -- sh -c '$(say exec-srun)'"
batch exec-srun-pmix "srun --mpi=pmix $BERTH exec -- sh -c '$(say exec-srun-pmix)'"
unset SLURM_CONF
printf '#!/bin/bash\nhost=${@: -2:1}\nexec nsenter -t "$(cat "%s/pid/$host")" -a --wd=/ sh -c "${@: -1}"\n' "$CLUSTER" >bin/ssh
chmod +x bin/ssh
PATH=$share/bin:$PATH timeout 60 "$BERTH" run --hosts n1,n2 --ranks-per-node 2 -- sh -c "$(say ssh)"
echo $? >"$NET/ssh.code"
(umask 077; head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >secret)
for n in 2 1; do
	on n$n env BERTH_SECRET_FILE="$share/secret" timeout 60 "$BERTH" run --nnodes 2 --node-rank $((n - 1)) "$endpoint" n1:4711 \
		--ranks-per-node 2 -- sh -c "$(say hand)" & pids="${pids-} $!"
done
wait $pids; echo $? >"$NET/hand.code"
python3 "$TESTS/pbs.py" begin n1 n2 >&2 3>&-
for engine in tm mpirun; do
	printf 'cd %s\nexport NET=%s LD_LIBRARY_PATH=%s BERTH_TOPOLOGY=%s OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n%s\necho $? >%s\n' \
		"$share" "$NET" "$LD_LIBRARY_PATH" "$CLUSTER/topology.xml" \
		"$BERTH run $launcher $engine --ranks-per-node 2 -- sh -c '$(say $engine)'" "$NET/$engine.code" >$engine.sh
	timeout 60 "$share/pbs/bin/qsub" -N $engine -o "$share/$engine.out" -l select=2:ncpus=4:mpiprocs=2 -l walltime=01:00:00 $engine.sh
	until_there "$NET/$engine.code"; cat "$share/$engine.out"
done
cd "$NET" || exit
for file in *; do echo "== $file"; tr '\n\0' ' \n' <"$file"; echo; done >&3
