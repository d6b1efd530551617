# SPDX-License-Identifier: BSD-3-Clause
# The examples of each framework, on 2 nodes with 2 ranks each and on one machine with 4: the loss
# falls, and every rank sees 4 ranks. One test per place, one line of output per cell; beside it, the same
# with torchrun, for the frameworks that it can start.
# FRAMEWORKS: a Python with the packages of frameworks/requirements.txt (frameworks.sh).

load support.bash

ALL=${ALL:-ddp fsdp2 lightning_trainer accelerate_train hf_trainer deepspeed_train jax_train mpi4py_train}
TORCH='ddp fsdp2 lightning_trainer accelerate_train hf_trainer deepspeed_train'
PROGRAMS=$SOURCE/examples

setup() {
	cd "$SHARE" || return
	# The nodes have more cores in their simulated hardware than this machine.
	export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 HOME=$SHARE/home
	mkdir -p "$HOME"
	ENVIRONMENT="export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 HOME=$HOME"
	failed=
}

teardown() {
	[ -z "${SLURM_CONF-}" ] || cancel_jobs
}

# cell PLACE PROGRAM RANKS-OF-NODES: $output has each of 4 ranks once, on the nodes in this order.
cell() {
	local rank=0 node lines
	lines=$(grep -oE 'rank [0-9]+ of [0-9]+ on [^ ]+: loss falls' <<<"$output" | sort)
	for node in $3; do
		grep -qx "rank $rank of 4 on $node: loss falls" <<<"$lines" || {
			echo "# $1, $2: no rank $rank of 4 on $node" >&3
			failed="$failed $2"
			return 0
		}
		rank=$((rank + 1))
	done
	[ "$(wc -l <<<"$lines")" = 4 ] || failed="$failed $2"
	echo "# $1, $2: trained" >&3
}

# limit PROGRAM: seconds. DeepSpeed compiles an operator at its first start, for a minute or more.
limit() { case $1 in *deepspeed*) echo 240 ;; *) echo 120 ;; esac; }

@test "one machine" {
	for program in $ALL; do
		run timeout "$(limit "$program")" "$BERTH" run --launcher fork -n 4 -- "$FRAMEWORKS" "$PROGRAMS/$program.py"
		echo "$output"
		cell "$BATS_TEST_DESCRIPTION" "$program" "$(hostname) $(hostname) $(hostname) $(hostname)"
	done
	# The lines of examples/README.md that start something other than python PROGRAM.
	cp -r "$PROGRAMS" . # sweep.sh writes to runs/, ddp_resume.py to ckpt.pt
	export PATH="$(dirname "$FRAMEWORKS"):$(dirname "$BERTH"):$PATH" PYTHONPATH=$SOURCE/lib/python/src
	for line in 'accelerate launch --config_file examples/accelerate.yaml examples/accelerate_train.py' \
		'deepspeed --num_gpus 4 examples/deepspeed_train.py' 'python examples/ddp_resume.py 6'; do
		# shellcheck disable=SC2086 # a line of several words
		run timeout "$(limit "$line")" "$BERTH" run --launcher fork -n 4 -- $line
		echo "$output"
		cell "$BATS_TEST_DESCRIPTION" "${line%% *} ${line##*/}" "$(hostname) $(hostname) $(hostname) $(hostname)"
	done
	[ -z "$failed" ]
}

@test "Slurm: a batch script" {
	for program in $ALL; do
		submit "$program" -N2 -w n1,n2 <<-S
		$ENVIRONMENT
		"\$BERTH" run --ranks-per-node 2 -- $FRAMEWORKS $PROGRAMS/$program.py
		S
		finish "$program" 120
		cell "$BATS_TEST_DESCRIPTION" "$program" 'n1 n1 n2 n2'
	done
	[ -z "$failed" ]
}

@test "Slurm: salloc" {
	for program in $ALL; do
		run timeout 120 salloc -Q -N2 -w n1,n2 "$BERTH" run --ranks-per-node 2 -- "$FRAMEWORKS" "$PROGRAMS/$program.py"
		echo "$output"
		cell "$BATS_TEST_DESCRIPTION" "$program" 'n1 n1 n2 n2'
	done
	[ -z "$failed" ]
}

@test "the stand-in for PBS" {
	[ -d "$TOOLS" ] || python3 "$HERE/pbs.py" begin n1 n2 3>&-
	unset SLURM_CONF
	for program in $ALL; do
		pbs_start "$program" 2:mpiprocs=2 <<-S
		$ENVIRONMENT
		"\$BERTH" run --ranks-per-node 2 -- $FRAMEWORKS $PROGRAMS/$program.py
		S
		finish "$program" 120
		cell "$BATS_TEST_DESCRIPTION" "$program" 'n1 n1 n2 n2'
	done
	[ -z "$failed" ]
}

@test "hosts over ssh" {
	[ -x /usr/sbin/sshd ] || skip "no sshd (Debian: openssh-server)"
	ssh_begin
	unset SLURM_CONF
	export PATH="$CLUSTER/share/ssh/bin:$PATH"
	for program in $ALL; do
		run timeout 120 "$BERTH" run --hosts n1,n2 --ranks-per-node 2 --env OMP_NUM_THREADS=1 --env HF_HUB_OFFLINE=1 -- \
			"$FRAMEWORKS" "$PROGRAMS/$program.py"
		echo "$output"
		cell ssh "$program" 'n1 n1 n2 n2'
	done
	[ -z "$failed" ]
}

@test "by hand: the same line on each of two nodes" {
	unset SLURM_CONF
	mkdir -p "$HOME/.config/berth"
	(umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$HOME/.config/berth/secret")
	for program in $ALL; do
		for node in 0 1; do
			on n$((node + 1)) env OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HOME="$HOME" BERTH_TOPOLOGY="$BERTH_TOPOLOGY" timeout 120 \
				"$BERTH" run --nnodes 2 --node-rank $node --rdzv-endpoint 10.9.0.11:29400 --ranks-per-node 2 -- \
				"$FRAMEWORKS" "$PROGRAMS/$program.py" >"hand.$node" 2>&1 3>&- &
		done
		wait
		output=$(cat hand.0 hand.1)
		echo "$output"
		cell "$BATS_TEST_DESCRIPTION" "$program" 'n1 n1 n2 n2'
	done
	[ -z "$failed" ]
}

# Without a GPU accelerate itself trains with DDP whatever the file says; the variables are those of a cluster.
@test "accelerate launch and deepspeed: the same variables and losses as without berth" {
	export PATH="$(dirname "$FRAMEWORKS"):$PATH"
	local file='num_processes: 2\nnum_machines: 1\ncompute_environment: LOCAL_MACHINE\n'
	printf "${file}distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n" >fsdp2.yaml
	printf "${file}distributed_type: MULTI_GPU\nmixed_precision: bf16\n" >bf16.yaml
	printf "${file}distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n  gradient_clipping: 0.5\n" >zero2.yaml
	for name in fsdp2 bf16 zero2; do
		OUT=without.$name timeout 120 accelerate launch --config_file $name.yaml "$HERE/frameworks/launched.py"
		OUT=with.$name expect 0 timeout 120 "$BERTH" run --launcher fork -n 2 -- \
			accelerate launch --config_file $name.yaml "$HERE/frameworks/launched.py"
		"$FRAMEWORKS" "$HERE/frameworks/launched.py" compare without.$name with.$name | sed "s/^/# $name, /" >&3
	done
	# As the default file of accelerate, on two nodes.
	mkdir -p "$HOME/.cache/huggingface/accelerate"
	sed '/^num_/d' bf16.yaml >"$HOME/.cache/huggingface/accelerate/default_config.yaml"
	OUT=$SHARE/two timeout 120 salloc -Q -N2 -w n1,n2 "$BERTH" run --ranks-per-node 1 -- accelerate launch --num_processes 2 --num_machines 2 \
		--machine_rank 7 --main_process_ip nowhere "$HERE/frameworks/launched.py"
	grep -q '"ACCELERATE_MIXED_PRECISION": "bf16"' two.1
	rm -r "$HOME/.cache/huggingface/accelerate"
	cat >ds.py <<-'E'
	import argparse, os
	parser = argparse.ArgumentParser()
	parser.add_argument('--local_rank', type=int, default=-1)
	print('local', parser.parse_args().local_rank, 'of', os.environ['LOCAL_SIZE'], flush=True)
	E
	expect 0 timeout 120 "$BERTH" run --launcher fork -- deepspeed --num_gpus 2 ds.py
	[ "$(grep '^local' <<<"$output" | sort)" = $'local 0 of 2\nlocal 1 of 2' ]
}

# What one types without berth. rank and node follow from the order in which torchrun's agents meet.
@test "torchrun on one machine and under Slurm, for comparison" {
	for program in $TORCH; do
		run timeout 120 "$FRAMEWORKS" -m torch.distributed.run --standalone --nproc-per-node 4 "$PROGRAMS/$program.py"
		echo "$output"
		cell torchrun "$program" "$(hostname) $(hostname) $(hostname) $(hostname)"
		submit "torchrun-$program" -N2 -w n1,n2 --ntasks-per-node=1 <<-S
		$ENVIRONMENT
		timeout 60 srun $FRAMEWORKS -m torch.distributed.run --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-id 1 \\
			--rdzv-endpoint "\$(scontrol show hostnames | head -n 1):29500" $PROGRAMS/$program.py
		S
		finish "torchrun-$program" 120
		output=$(sed 's/rank \([0-9]\) of 4 on n[12]/rank \1 of 4 on any/' <<<"$output")
		cell 'torchrun under Slurm' "$program" 'any any any any'
	done
	# A cell that fails here says nothing about berth.
}
