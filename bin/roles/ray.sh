# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=sh
# What the roles of berth run --ray execute, by the word in $0: node, ready, driver, version.
# Ray itself is used by its command line only.

address() { # IPv6 in brackets
	case $BERTH_ROLE_RAY_ADDR in
	*:*) echo "[$BERTH_ROLE_RAY_ADDR]:${BERTH_ROLE_RAY_PORTS%-*}" ;;
	*) echo "$BERTH_ROLE_RAY_ADDR:${BERTH_ROLE_RAY_PORTS%-*}" ;;
	esac
}

refuse() { # TEXT [CODE]
	echo "$1" >&2
	exit "${2:-64}"
}

# Run CODE with Ray's own Python. It imports nothing from the working directory, where other users may have put csv.py.
# -I would also ignore PYTHONPATH, in which Ray may be.
python() { # -c CODE [ARGUMENT...]
	options=$1 code="import sys; sys.path[:] = filter(None, sys.path)
$2"
	shift 2
	python=$(sed -n '1s/^#! *//p' "$(command -v ray)")
	case $python in
	*/python*) ;;
	*) python=python3 ;;
	esac
	"$python" "$options" "$code" "$@" 2>/dev/null
}

# "2.60.0 with Python 3.11". Ray's own --version imports all of it, which takes a second.
version() {
	python -c 'import importlib.metadata
print(importlib.metadata.version("ray"), "with Python %d.%d" % sys.version_info[:2])'
}

gpus() {
	IFS=,
	# shellcheck disable=SC2086 # the names between the commas
	set -- ${CUDA_VISIBLE_DEVICES-${ROCR_VISIBLE_DEVICES-${ZE_AFFINITY_MASK-}}}
	echo $#
}

# Each node's own directory, which berth removes. Ray's sockets need 63 more characters of the 107
# that a socket's path may have; the other name is good for as long as this shell runs.
directory() {
	dir=${BERTH_PLAN_FILE%/*}/ray
	log=$dir/start.log
	mkdir -p "$dir" && exec 9<"$dir" || exit 74
	[ ${#dir} -le 44 ] || dir=/proc/$$/fd/9
}

start() {
	start_version=$(version)
	[ -z "$BERTH_RAY_VERSION" ] || [ -z "$start_version" ] || [ "$start_version" = "$BERTH_RAY_VERSION" ] ||
		refuse "Ray is $start_version on $(hostname), and $BERTH_RAY_VERSION where berth run was started: use the same on all nodes"
	(eval "set -- $BERTH_RAY_ARGS") 2>/dev/null || refuse "--ray-args is not a list of words of a shell: $BERTH_RAY_ARGS"
	directory
	first=${BERTH_PORTS%-*}
	address=$PET_LOCAL_ADDR
	eval "set -- $BERTH_RAY_ARGS"
	# Another user may listen on a port that is known before Ray does. So only what must be known is: Ray binds
	# any other port first (0), and then tells it.
	set -- --node-ip-address="$address" --temp-dir="$dir" --num-cpus="$(nproc)" --num-gpus="$(gpus)" \
		--object-manager-port=0 --node-manager-port=0 --runtime-env-agent-port=0 --dashboard-agent-grpc-port=0 \
		--dashboard-agent-listen-port=0 --metrics-export-port=0 --min-worker-port=0 --max-worker-port=0 "$@"
	if [ "$BERTH_NODE_RANK" = 0 ]; then
		export AUTOSCALER_METRIC_PORT=$((first + 3)) DASHBOARD_METRIC_PORT=$((first + 4))
		# Ray updates what ray status shows every 5 s by default, and the driver waits for that.
		export AUTOSCALER_UPDATE_INTERVAL_S="${AUTOSCALER_UPDATE_INTERVAL_S-1}"
		# ray start refuses the option without what Ray Client needs, which Ray's package alone does not bring.
		! python -c 'import importlib.util; sys.exit(not importlib.util.find_spec("grpc"))' ||
			set -- --ray-client-server-port=$((first + 2)) "$@"
		set -- --head --port="$first" --dashboard-port=$((first + 1)) "$@"
	else
		set -- --address="$(address)" "$@"
	fi
	# Ray's workers are not ranks: a library in them must not look for the others.
	for name in $(env | sed -n 's/^\([A-Z0-9_]*\)=.*/\1/p'); do
		case $name in
		RANK | WORLD_SIZE | LOCAL_RANK | LOCAL_WORLD_SIZE | NODE_RANK | GROUP_RANK | MASTER_ADDR | MASTER_PORT | OMP_NUM_THREADS | \
			JAX_COORDINATOR_ADDRESS | JAX_NUM_PROCESSES | JAX_PROCESS_ID | PET_* | PMI_* | PMIX_* | OMPI_* | BERTH_RAY*) unset "$name" ;;
		esac
	done
	[ "$BERTH_ROLE_RAY_WORLD_SIZE" = 1 ] || export VLLM_HOST_IP="$address"
	# Its lines interest only if it fails.
	ray start --block "$@" >"$log" 2>&1
	code=$?
	tail -n 20 "$log" >&2
	exit $code
}

# Whoever reaches Ray's ports may run programs as the user, unless they need a token. Ray before 2.52 ignores it.
[ -n "${RAY_AUTH_TOKEN-}${RAY_AUTH_TOKEN_PATH-}" ] || [ "${RAY_AUTH_MODE-}" != token ] || export RAY_AUTH_TOKEN="$BERTH_ROLE_SECRET"

[ "$0" = driver ] || command -v ray >/dev/null ||
	refuse "ray is not in PATH on $(hostname): install it there, too, or activate its environment before berth run" 66
case $0 in
version) version ;;
node) start ;;
ready)
	joined=$(ray status --address="$(address)" 2>&1 | awk '/^Pending/ { exit } / node_/ { n += $1 } END { print n + 0 }')
	echo "$joined of $BERTH_ROLE_RAY_WORLD_SIZE nodes have joined"
	[ "$joined" -ge "$BERTH_ROLE_RAY_WORLD_SIZE" ]
	;;
driver)
	RAY_ADDRESS=$(address)
	export RAY_ADDRESS
	# vLLM finds the driver's node among Ray's by this address; else it takes that of the default route.
	[ "$BERTH_ROLE_RAY_WORLD_SIZE" = 1 ] || export VLLM_HOST_IP="$BERTH_ROLE_RAY_ADDR"
	unset BERTH_RAY BERTH_RAY_ARGS BERTH_RAY_VERSION
	exec "$@"
	;;
esac
