# SPDX-License-Identifier: BSD-3-Clause
# berth run --container-runtime under a real Slurm: Charliecloud and bubblewrap; container.bats has
# Apptainer.

load support.bash
load image.bash

setup_file() {
	image "$SHARE/image"
	mkdir -p "$SHARE/image$SHARE" # a place for the job's directory
}

setup() {
	cd "$SHARE"
}

teardown() {
	cancel_jobs
	for node in n1 n2; do revive "$node"; done
}

# place RUNTIME: the same place inside as outside, and the image's PATH
place() {
	command -v "$1" >/dev/null || skip "no $1"
	export RUNTIME=$1 ODD='a  $HOME `id` "q"'"'"
	rm -f met.*
	submit place -N2 <<-'S'
	"$BERTH" run --ranks-per-node 2 -- sh -c "$SHOWS" >outside &&
		"$BERTH" run --ranks-per-node 2 --env "GIVEN=$ODD" --report report --container-runtime $RUNTIME --container ./image -- \
			sh -c 'echo "<$GIVEN><$PATH>" >&2; '"$SHOWS" >inside 2>space
	S
	finish place
	cat inside space
	[ "$status" = 0 ]
	diff <(sort outside) <(sort inside)
	[ "$(grep -c 'gpu' inside)" = 4 ]
	[ "$(grep -c '^image n[12]$' space)" = 4 ]
	[ "$(grep -cxF "<$ODD></usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin>" space)" = 4 ]
	grep -q '"runtime": ".*/'"$1" report
	"$BERTH" report -o report.html report
	grep -q "\"container\":{\"image\":\"$SHARE/image" report.html
	nothing_left n1 n2
}

# ends RUNTIME: a stop signal, and an agent and a program that are killed
ends() {
	command -v "$1" >/dev/null || skip "no $1"
	export RUNTIME=$1
	stops --container ./image --container-runtime "$RUNTIME"
	for what in agent program; do
		submit killed -N2 <<-'S'
		"$BERTH" run --ranks-per-node 2 --container ./image --container-runtime $RUNTIME -- sh -c 'echo up; exec sleep 79' 2>&1
		S
		within 30 all_up killed
		if [ $what = agent ]; then
			on n2 kill -KILL "$(on n2 pgrep -x -P "$(on n2 pgrep -x berth-guard)" berth)"
		else
			on n2 kill -KILL "$(on n2 pgrep -n -f '^sleep 79')"
		fi
		finish killed
		[ "$status" = "$([ $what = agent ] && echo 76 || echo 137)" ]
		has 'n2'
		nothing_left n1 n2
	done
}

@test "Charliecloud: the same place inside as outside" { place ch-run; }
@test "Charliecloud: signals, kills" { ends ch-run; }
@test "bubblewrap: the same place inside as outside" { place bwrap; }
@test "bubblewrap: signals, kills" { ends bwrap; }

@test "user namespaces are forbidden: refused before the start" {
	command -v ch-run >/dev/null || skip 'no ch-run'
	rm -f go pid
	mkfifo go
	# The limit counts below the namespace in which it is set. From outside, that one gets users of its own.
	cat >limited <<-'S'
	echo 0 >/proc/sys/user/max_user_namespaces
	exec setpriv --reuid 1 --regid 1 --clear-groups "$BERTH" run -n 1 --container-runtime ch-run --container ./image -- cat
	S
	unshare -U sh -c 'echo $$ >pid; read -r _ <go; exec sh limited' >out 2>&1 &
	within 10 test -s pid
	echo 0 0 65536 | tee "/proc/$(cat pid)/uid_map" >"/proc/$(cat pid)/gid_map"
	echo >go
	wait $! || code=$?
	cat out
	[ "$code" = 69 ]
	grep -q 'ch-run needs user namespaces, and this system refuses them: their number is limited' out
}

# with_driver VERSION COMMAND...: on a machine that seems to have this driver of NVIDIA's
with_driver() {
	unshare -m sh -c 'mount -t tmpfs none /sys/module && mkdir /sys/module/nvidia && echo "$0" >/sys/module/nvidia/version && exec "$@"' "$@"
}

@test "an image whose CUDA is newer than the driver: refused before the start, but for cuda-compat" {
	command -v bwrap >/dev/null || skip 'no bwrap'
	local cuda=image/.singularity.d/env/10-docker2singularity.sh
	mkdir -p image/.singularity.d/env
	echo 'export CUDA_VERSION="${CUDA_VERSION:-"13.0.1"}"' >$cuda
	run with_driver 575.57.08 "$BERTH" run -n 1 --container ./image --container-runtime bwrap -- cat /etc/berth-image
	echo "$output"
	[ "$status" = 69 ]
	has 'the image has CUDA 13, and the driver here .575.57.08. is for CUDA 12'
	run with_driver 580.65.06 "$BERTH" run -n 1 --container ./image --container-runtime bwrap -- cat /etc/berth-image
	[ "$status" = 0 ]
	mkdir -p image/usr/local/cuda/compat
	touch image/usr/local/cuda/compat/libcuda.so.1
	run with_driver 575.57.08 "$BERTH" run -n 1 --container ./image --container-runtime bwrap -- cat /etc/berth-image
	[ "$status" = 0 ]
	has 'warning: --container: the image has CUDA 13'
	rm -r image/.singularity.d image/usr/local
}
