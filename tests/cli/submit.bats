# SPDX-License-Identifier: BSD-3-Clause
# berth submit: scripts compared with tests/golden/submit (BERTH_GOLDEN_WRITE=1 rewrites them), rejected
# values, the files of site and user, fake sbatch and qsub.

load ../support/berth

setup() {
	make_dir
	GOLDEN=$SOURCE/tests/golden/submit
	export HOME=$DIR PBS_CONF_FILE=/nonexistent
	mkdir -p "$DIR/.config/berth"
	config '{"berth": "berth"}'
	[ ! -e /etc/berth ] || without_site
}

# Hide this machine's own /etc/berth from berth, except under with_site.
without_site() {
	cat >"$DIR/berth" <<-S
	#!/bin/sh
	[ -z "\${WITH_SITE-}" ] || exec $BERTH "\$@"
	exec $(command -v unshare) --map-root-user --mount $(command -v sh) -c \\
		'$(command -v mount) -t tmpfs none /etc/berth && exec "\$0" "\$@"' $BERTH "\$@"
	S
	chmod +x "$DIR/berth"
	BERTH=$DIR/berth
}

config() { echo "$1" >"$DIR/.config/berth/submit.json"; }

# golden NAME OPTIONS...
golden() {
	local name=$1
	shift
	"$BERTH" submit --dry-run "$@" >"$DIR/script"
	if [ -n "${BERTH_GOLDEN_WRITE-}" ]; then
		sed "s/submit $BERTH_VERSION/submit VERSION/" "$DIR/script" >"$GOLDEN/$name"
	fi
	sed "s/submit $BERTH_VERSION/submit VERSION/" "$DIR/script" | diff "$GOLDEN/$name" -
	bash -n "$DIR/script"
	! command -v shellcheck >/dev/null || shellcheck -e SC2016 "$DIR/script" # nothing is to expand
}

@test "scripts for Slurm" {
	golden slurm-plain --slurm -- python train.py
	golden slurm-all --slurm --nodes 2 --gpus-per-node 4 --cpus-per-node 64 --time 2:00:00 --queue gpu,long \
		--account phys:a --name run-1 --output 'logs/%j.out' --after 4711 -- python train.py --lr 0.1
	golden slurm-ranks --slurm --nodes 2 --ranks-per-node 8 --cpus-per-node 64 --time 90m -- ./solver
	golden slurm-torchrun --slurm --nodes 2 --gpus-per-node 4 --per-node --time 1d -- torchrun train.py
}

@test "scripts for PBS" {
	golden pbs-plain --pbs -- python train.py
	golden pbs-all --pbs --nodes 2 --gpus-per-node 4 --cpus-per-node 64 --time 50h --queue gpu \
		--account phys --name run-1 --output logs/out --after '12[3].server' -- python train.py --lr 0.1
	golden pbs-ranks --pbs --nodes 2 --ranks-per-node 8 --time 90s -- ./solver
	golden pbs-torchrun --pbs --nodes 2 --gpus-per-node 4 --per-node -- torchrun train.py
}

@test "options for berth run: --requeue, --warn-before, --log-dir" {
	golden slurm-requeue --slurm --time 2h --requeue --warn-before 5m --log-dir 'my logs' -- python train.py
	golden pbs-requeue --pbs --time 2h --requeue --log-dir logs -- berth train resnet50 --ckpt ckpt
	for wrong in soon 2d ''; do
		expect 64 "$BERTH" submit --slurm --dry-run --warn-before "$wrong" -- true
		[[ "$output" == *"--warn-before $wrong: expected a time from 1s to 1d"* ]]
	done
	# Also where the line has it: in a file, and of berth run itself; but not of a program.
	local line
	for line in '--requeue --role a -- true : --role b -- true' '-n 2 --requeue -- true'; do
		"$BERTH" submit --slurm --dry-run @<(echo "$line") >script
		grep -qx '#SBATCH --open-mode=append' script
		grep -q "run $line$" script
	done
	"$BERTH" submit --slurm --dry-run -- berth run --requeue -- true | grep -qx '#SBATCH --requeue'
	for line in '-n 2 -- true --requeue' '--role a -- true --requeue'; do
		! "$BERTH" submit --slurm --dry-run @<(echo "$line") | grep -q '^#SBATCH.*requeue' || false
	done
}

@test "berth train and berth run start the ranks themselves" {
	golden pbs-train --pbs --nodes 2 --gpus-per-node 4 -- berth train resnet50 --ckpt 'my ckpt'
	golden slurm-train --slurm --nodes 2 --ranks-per-node 2 -- /opt/x/berth train linear
	golden slurm-run --slurm --per-node -- berth run --max-restarts 2 -- torchrun train.py
	run "$BERTH" submit --slurm --dry-run -- berth check --ckpt d
	[[ "$output" == *$'\nberth run -- berth check --ckpt d' ]]
}

@test "--role and --ray, as with berth run; wrong roles are refused before the job waits in the queue" {
	expect 0 "$BERTH" submit --slurm --dry-run --log-dir logs --role serve --service --ready tcp -- vllm --port {port} : \
		--role ask -- python ask.py 'a b'
	[[ $output == *"run --log-dir logs --role serve --service --ready tcp -- vllm --port '{port}' : --role ask -- python ask.py 'a b'"* ]]
	expect 0 "$BERTH" submit --pbs --dry-run --ray -- python driver.py
	[[ $output == *'run --ray -- python driver.py'* ]]
	expect 64 "$BERTH" submit --slurm --dry-run --role serve -- true : --role ask --after serv -- true
	[[ $output == *'--after serv: there is no such role'* ]]
	expect 64 "$BERTH" submit --slurm --dry-run --ray --role serve -- true
	[[ $output == *'--ray conflicts with --role'* ]]
	expect 64 "$BERTH" submit --slurm --dry-run --role serve --bogus -- true
	[[ $output == *"unrecognized option '--bogus'"* ]]
}

@test "characters that a shell could misread arrive unchanged" {
	golden slurm-quoting --slurm -- sh -c 'echo "$HOME" `id` *' "it's" '' 'a  b' '~' 'x[1]' '#y' '-n' '!' '{a,b}' 'c;d' '$(e)' \
		$'two\nlines' '#SBATCH --wrap'
	# A shell parses the last line into the given words.
	mkdir "$DIR/as-berth"
	printf '#!/bin/sh\nfor word; do printf "<%%s>" "$word"; done\n' >"$DIR/as-berth/berth"
	chmod +x "$DIR/as-berth/berth"
	cd "$DIR" && touch x1 # which x[1] would match
	expect 0 env PATH="$DIR/as-berth:$PATH" bash "$DIR/script"
	[ "$output" = $'<run><--><sh><-c><echo "$HOME" `id` *><it\'s><><a  b><~><x[1]><#y><-n><!><{a,b}><c;d><$(e)><two\nlines><#SBATCH --wrap>' ]
}

@test "the user's file: defaults, lines, directives; options win" {
	config '{"scheduler": "pbs", "queue": "q1", "account": "a1", "gpus_per_node": 4, "cpus_per_node": 32,
	  "berth": "/opt/b/berth", "lines": ["module load berth", "export X=1"], "directives": ["-l filesystems=home", "-V"]}'
	golden pbs-config --nodes 2 --queue q2 -- python train.py
	golden pbs-no-gpu --nodes 2 --gpus-per-node 0 --cpus-per-node 8 -- python prepare.py
	config '{"berth": "berth", "gpus_per_node": 0}'
	golden slurm-no-gpu --slurm -- python prepare.py
}

@test "GPUs come with cores: cpus_per_gpu of a file, or a note that none are requested" {
	config '{"berth": "berth", "cpus_per_gpu": 8}'
	golden slurm-cpus-per-gpu --slurm --nodes 2 --gpus-per-node 4 --ranks-per-node 4 -- python train.py
	golden pbs-cpus-per-gpu --pbs --nodes 2 --gpus-per-node 4 -- python train.py
	asks() { # asks LINE|"" NOTE: options "$@" give that directive, and print the note or not
		local line=$1 note=$2
		shift 2
		expect 0 "$BERTH" submit --slurm --dry-run "$@" -- true
		[ "$(grep -o '^#SBATCH --cpus-per-.*' <<<"$output")" = "${line:+#SBATCH --cpus-per-$line}" ]
		[ "$(grep -c '^berth: note: requesting no cores: .*--cpus-per-node, or cpus_per_gpu to submit.json$' <<<"$output")" = "$note" ]
	}
	asks task=64 0 --gpus-per-node 4 --cpus-per-node 64
	asks '' 0
	config '{"berth": "berth", "cpus_per_gpu": 8, "cpus_per_node": 5}'
	asks task=5 0 --gpus-per-node 4
	config '{"berth": "berth"}'
	asks '' 1 --gpus-per-node 4
	asks '' 0
	config '{"berth": "berth", "directives": ["--exclusive"]}'
	asks '' 0 --gpus-per-node 4
}

@test "bad values are named" {
	while IFS='|' read -r code text options; do
		eval "run \"\$BERTH\" submit --dry-run $options -- true"
		echo "$options: $status $output"
		[ "$status" = "$code" ]
		[[ "$output" == *"$text"* ]]
		[[ "$output" == "berth: error: "* ]]
	done <<-'ROWS'
	64|give one|--slurm --pbs
	64|--queue|--slurm --queue 'a b'
	64|--queue|--slurm --queue $'a\n#SBATCH --wrap=x'
	64|--account|--slurm --account 'a;b'
	64|--name|--pbs --name 1a
	64|--name|--pbs --name ''
	64|--output|--pbs --output '$HOME/x'
	64|--after|--pbs --after '-x'
	64|--after|--slurm --after '1 --wrap=x'
	64|minutes to Slurm, seconds to PBS; expected a time from 1s to 366d|--slurm --time 120
	64|Use --ranks-per-node K|--slurm -n 4
	64|--time|--pbs --time 1-
	64|--time|--slurm --time 1-x
	64|--time|--slurm --time -1:00
	64|--time|--pbs --time 1:
	64|--time|--slurm --time 366-01
	64|--time|--slurm --time soon
	64|--time|--slurm --time 1:99:00
	64|--time|--slurm --time 0:00:00
	64|--time|--slurm --time 400d
	64|--nodes|--slurm --nodes 0
	64|--gpus-per-node|--slurm --gpus-per-node -1
	64|expected a multiple|--slurm --ranks-per-node 8 --cpus-per-node 63
	ROWS
	expect 64 "$BERTH" submit --slurm --dry-run
	[[ "$output" == *'no PROGRAM given'* ]]
}

@test "--time: the formats of sbatch and qsub, for both" {
	while read -r given seconds; do
		expect 0 "$BERTH" submit --pbs --time "$given" --dry-run -- true
		written=$(sed -n 's/^#PBS -l walltime=//p' <<<"$output")
		[ "$(awk -F: '{print $1 * 3600 + $2 * 60 + $3}' <<<"$written")" = "$seconds" ]
		expect 0 "$BERTH" submit --slurm --time "$given" --dry-run -- true
		[[ $output == *"#SBATCH --time="* ]]
	done <<-'E'
	2:00 120
	90:00 5400
	1:30:00 5400
	1-00:00:00 86400
	1-2 93600
	1-02:30 95400
	0-00:10 600
	3600s 3600
	90m 5400
	E
}

@test "--time and --end-time: each form that a message offers is accepted" {
	for bad in x 5 0 0:00:00 400d 367-00 1:75:00 1: 99999999999 ''; do
		expect 64 "$BERTH" submit --slurm --time "$bad" --dry-run -- true
		offered=$(grep -oE '\b[0-9]+([:-][0-9:]+|[smhd])' <<<"${output#*expected}")
		[ "$(wc -l <<<"$offered")" = 7 ]
		for form in $offered; do
			expect 0 "$BERTH" submit --slurm --time "$form" --dry-run -- true
			expect 0 "$BERTH" submit --pbs --time "$form" --dry-run -- true
		done
	done
	for bad in x +x 90 +; do
		expect 64 "$BERTH" run --end-time "$bad" --dry-run -n 1 -- true
		[ "$bad" = 90 ] || [ "$(grep -oE '\+[0-9]+[mhd]' <<<"$output" | wc -l)" = 3 ]
		for form in $(grep -oE '\+[0-9]+[mhd]' <<<"$output"); do
			expect 0 "$BERTH" run --end-time "$form" --dry-run -n 1 -- true
		done
	done
}

# with_site JSON COMMAND...: with JSON as /etc/berth/submit.json, in a private mount namespace.
with_site() {
	unshare --map-root-user --mount true 2>/dev/null || skip "no namespaces for mounts here"
	mkdir -p "$DIR/etc/berth"
	cp /etc/passwd /etc/group /etc/ld.so.cache "$DIR/etc"
	echo "$1" >"$DIR/etc/berth/submit.json"
	WITH_SITE=yes unshare --map-root-user --mount sh -c 'mount --bind "$0/etc" /etc && exec "$@"' "$DIR" "${@:2}"
}

@test "the site's file: its account, module lines and directives; the user's file and options win" {
	site='{"scheduler": "pbs", "queue": "site-q", "account": "site-a", "berth": "/site/bin/berth", "gpus_per_node": 8, "cpus_per_gpu": 8,
	  "lines": ["module load site"], "directives": ["-l filesystems=home"]}'
	config '{}'
	expect 0 with_site "$site" "$BERTH" submit --dry-run --nodes 2 -- python train.py
	diff - <(tail -n +3 <<<"$output") <<-'E'
	#PBS -N berth
	#PBS -j oe
	#PBS -l select=2:ncpus=64:ngpus=8:mpiprocs=8
	#PBS -l place=scatter
	#PBS -q site-q
	#PBS -A site-a
	#PBS -l filesystems=home

	cd "$PBS_O_WORKDIR" || exit
	trap : TERM
	module load site
	/site/bin/berth run -- python train.py
	E
	# The user's scalars win over the site's, an option over both; lines and directives are concatenated.
	config '{"scheduler": "slurm", "account": "mine", "gpus_per_node": 2, "lines": ["module load mine"], "directives": ["--exclusive"]}'
	run with_site "$site" "$BERTH" submit --dry-run --queue option-q -- true
	echo "$output"
	diff - <(tail -n +3 <<<"$output") <<-'E'
	#SBATCH --job-name=berth
	#SBATCH --nodes=1
	#SBATCH --gpus-per-node=2
	#SBATCH --ntasks-per-node=1
	#SBATCH --cpus-per-task=16
	#SBATCH --partition=option-q
	#SBATCH --account=mine
	#SBATCH -l filesystems=home
	#SBATCH --exclusive

	module load site
	module load mine
	/site/bin/berth run -- true
	E
}

@test "a bad site file is named even if the user's file is valid, and nothing is submitted" {
	for tool in sbatch qsub; do fake $tool "touch $DIR/submitted"; done
	for json in '{"queue": 4}' '{"lines": "module load x"}' '{"nodes": 2}' '{"queue": ' '["pbs"]' ''; do
		run with_site "$json" env PATH="$DIR/bin:$PATH" "$BERTH" submit --queue q -- true
		echo "$json: $status $output"
		[ "$status" = 65 ]
		[[ "$output" == "berth: error: "*/etc/berth/submit.json* ]]
	done
	[ ! -e "$DIR/submitted" ]
}

@test "settings of runs: info names their file, ranks get them, and the environment wins" {
	site='{"banned_interfaces": ["eth*", "docker0"], "staging": "/local/$PART", "launcher": "srun", "queue": "q"}'
	config '{"staging": "/mine/$PART/x", "fabric": {"NCCL_CROSS_NIC": "1", "FI_PROVIDER": "cxi"}}'
	expect 0 with_site "$site" env PART=7 FI_PROVIDER=tcp "$BERTH" info
	[[ "$output" =~ BERTH_STAGING\ +/mine/7/x\ +$DIR/.config/berth/submit.json ]]
	[[ "$output" =~ BERTH_BANNED_INTERFACES\ +eth\*,docker0\ +/etc/berth/submit.json ]]
	[[ "$output" =~ BERTH_LAUNCHER\ +srun\ +/etc/berth/submit.json ]]
	[[ "$output" == *"one agent per node with fork"* ]] # the launcher is for several nodes
	expect 0 with_site "$site" env FI_PROVIDER=tcp "$BERTH" run -n 1 -- sh -c 'echo "$NCCL_CROSS_NIC $FI_PROVIDER ${BERTH_STAGING-unset}"'
	[[ "$output" == *"1 tcp unset"* ]] # PART is unset
	expect 0 with_site "$site" env PART=7 "$BERTH" run -n 1 -- "$BERTH" info --json
	# A rank has them from its agent: info names the same file.
	[ "$(python3 -c 'import json, sys; print(*sorted(row["file"][-11:] for row in json.load(sys.stdin)["settings"]))' <<<"$output")" = \
		'submit.json submit.json submit.json submit.json submit.json' ]
	config '{"launcher": "rsh"}'
	expect 65 "$BERTH" run -n 1 -- true
	config '{"launcher": "mpirun"}'
	expect 0 "$BERTH" info --hosts a,b
	[[ "$output" == *"one agent per node with mpirun"* ]]
	expect 64 env BERTH_LAUNCHER=rsh "$BERTH" run --dry-run --hosts a,b -- true
	[[ "$output" == *"BERTH_LAUNCHER: unknown launcher 'rsh'"* ]]
	expect 0 env BERTH_BANNED_INTERFACES=', l? ' "$BERTH" info
	! grep -E '^  lo +127' <<<"$output" || false
}

@test "what a site shows in every container, besides the user's own" {
	mkdir -p image/bin
	touch image/bin/sh
	fake apptainer true
	expect 0 with_site '{"container_bind": ["/usr:/site/usr:ro", "/no/such"]}' \
		env PATH="$DIR/bin:$PATH" "$BERTH" run --dry-run --json -n 1 --container ./image --bind /tmp -- true
	[ "$(python3 -c 'import json, sys; c = json.load(sys.stdin)["container"]; print(c["binds"], c["offers"])' <<<"$output")" = \
		"['/tmp'] ['/usr:/site/usr:ro', '/no/such']" ]
}

@test "a bad user file: names file, key and expected value, and submits nothing" {
	for tool in sbatch qsub; do fake $tool "touch $DIR/submitted"; done
	while IFS='|' read -r text json; do
		config "$json"
		run env PATH="$DIR/bin:$PATH" "$BERTH" submit -- true
		echo "$json: $status $output"
		[ "$status" = 65 ]
		[[ "$output" == *"$DIR/.config/berth/submit.json"*"$text"* ]]
	done <<-'ROWS'
	"queue" is not a non-empty string|{"queue": 4}
	"queue" is not a non-empty string|{"queue": ""}
	has several lines|{"account": "a\nb"}
	unknown key "nodes"|{"nodes": 4}
	"lines" is not a list|{"lines": "module load x"}
	"lines"[1] is not a string|{"lines": ["a", 1]}
	has several lines|{"lines": ["a\nb"]}
	has several lines|{"directives": ["-V\nrm -rf x"]}
	"gpus_per_node" is not an integer|{"gpus_per_node": "4"}
	"gpus_per_node" is not an integer from 0|{"gpus_per_node": -1}
	"gpus_per_node" is not an integer from 0 to 1024|{"gpus_per_node": 1025}
	"cpus_per_node" is not an integer from 1|{"cpus_per_node": 0}
	"cpus_per_gpu" is not an integer from 1 to 100000|{"cpus_per_gpu": 0}
	"cpus_per_gpu" is not an integer|{"cpus_per_gpu": "8"}
	"scheduler" is neither|{"scheduler": "lsf"}
	"fabric" is not an object|{"fabric": []}
	PATH is not a variable of NCCL|{"fabric": {"PATH": "/x"}}
	NCCL_DEBUG is not a string|{"fabric": {"NCCL_DEBUG": 1}}
	has several lines|{"fabric": {"NCCL_DEBUG": "a\nb"}}
	is not a list of interfaces|{"banned_interfaces": "eno1"}
	[1] is not the name of an interface|{"banned_interfaces": ["eno1", "a,b"]}
	"container_bind" is not a list of paths|{"container_bind": "/x"}
	"container_bind" is not a list of paths|{"container_bind": []}
	"container_bind"[1] is not /PATH|{"container_bind": ["/x", "y"]}
	"container_bind"[0] is not /PATH|{"container_bind": [1]}
	"container_bind"[0] is not /PATH|{"container_bind": ["/x:/y:z"]}
	"container_bind"[0] is not /PATH|{"container_bind": ["/x,/y"]}
	unknown launcher 'rsh'|{"launcher": "rsh"}
	is not one absolute path|{"staging": "local"}
	is not one absolute path|{"staging": "/a /b"}
	is not one absolute path|{"staging": "/a/$(id)"}
	line|{"queue": 
	|[]
	ROWS
	config '{"directives": ["module load x"]}'
	expect 64 "$BERTH" submit --slurm --dry-run -- true
	[ ! -e "$DIR/submitted" ]
}

@test "the tool gets the script on standard input; its answer and its rejection are passed on" {
	fake qsub "cat >$DIR/got; echo 12.server"
	"$BERTH" submit --pbs --dry-run -- true >"$DIR/script"
	expect 0 env PATH="$DIR/bin:/usr/bin:/bin" "$BERTH" submit --pbs -- true
	[ "$output" = 12.server ]
	cmp "$DIR/got" "$DIR/script"
	fake qsub 'echo "qsub: Unknown queue" >&2; exit 170'
	expect 69 env PATH="$DIR/bin:/usr/bin:/bin" "$BERTH" submit --pbs -- true
	[[ "$output" == *'rejected the job (exit code 170): qsub: Unknown queue' ]]
	rm "$DIR/bin/qsub"
	expect 69 env PATH="$DIR/bin:/nowhere" "$BERTH" submit -- true
	[[ "$output" == *'neither sbatch nor qsub'* ]]
}
