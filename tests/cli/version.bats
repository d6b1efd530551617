# SPDX-License-Identifier: BSD-3-Clause
# berth --version: the libraries in use, and which modules can be loaded.

load ../support/berth

value() { # KEY TITLE: of that part in $output, as Python prints it
	python3 -c 'import json, sys
print({part["title"]: part for part in json.load(sys.stdin)["parts"]}[sys.argv[2]][sys.argv[1]])' "$@" <<<"$output"
}

@test "the version comes first, and each library is the file that is loaded" {
	expect 0 "$BERTH" --version --modules
	[ "${lines[0]}" = "berth $BERTH_VERSION" ]
	hwloc=$(ldd "$BERTH" | awk '$1 ~ /^libhwloc/ {print $3}')
	grep -q "^hwloc  *- *$(realpath "$hwloc")\$" <<<"$output"
}

@test "--json: every module that was built is found" {
	expect 0 "$BERTH" --version --modules --json
	titles=()
	for module in $MODULES; do
		case $module in
		ranks-pmix) titles+=(PMIx) ;;
		comm-mpi) titles+=(MPI) ;;
		comm-gloo) titles+=(gloo) ;;
		data-jpeg) titles+=(libjpeg) ;;
		device-cpu) titles+=(oneDNN) ;;
		comm-nccl | device-cuda) continue ;; # their libraries may lie elsewhere on this machine
		*) echo "no row for $module in bin/version.c"; return 1 ;;
		esac
	done
	for title in "${titles[@]}"; do
		echo "$title: $(value found "$title"), $(value library "$title")"
		[ "$(value found "$title")" = True ]
		[ -f "$(value library "$title")" ]
	done
}

@test "without --modules: one line, and no module" {
	expect 0 "$BERTH" -V
	[ "$output" = "berth $BERTH_VERSION" ]
	expect 0 "$BERTH" --version --json
	[ "$(python3 -c 'import json, sys; print(json.load(sys.stdin))' <<<"$output")" = \
		"{'schema': 'berth.version/1', 'version': '$BERTH_VERSION'}" ]
}

@test "a module that cannot be loaded: why, and what that costs" {
	mkdir -p "$DIR/bin"
	cp "$BERTH" "$DIR/bin/berth"
	echo 'not a library' >"$DIR/data-jpeg.so"
	expect 0 env BERTH_MODULE_PATH="$DIR" "$DIR/bin/berth" --version --modules
	grep -q '^libjpeg .*no: berth train reads no folders of images: .*data-jpeg.so' <<<"$output"
	expect 0 env BERTH_MODULE_PATH="$DIR" "$DIR/bin/berth" --version --json --modules
	[ "$(value found libjpeg)" = False ]
	[[ $(value reason libjpeg) == *"$DIR/data-jpeg.so"* ]]
	# The others are not beside this copy; an installed berth may have them.
	[[ $(value reason oneDNN) == None || $(value reason oneDNN) == *"looked in"*"$DIR/bin"* ]]
	[ "$(value found oneDNN)" = False ] || return 0
	# As in the wheel, which has no trainer.
	rm "$DIR/data-jpeg.so"
	expect 0 env BERTH_MODULE_PATH="$DIR" "$DIR/bin/berth" --version --modules
	[[ "$output" == *"berth train "*"not part of this installation" && "$output" != *libjpeg* ]]
}

@test "berth train without berth-train: exit code 69" {
	mkdir -p "$DIR/bin"
	cp "$BERTH" "$DIR/bin/berth"
	expect 69 "$DIR/bin/berth" train convnet -n 1
	[[ $output == *"the trainer is not installed: there is no $DIR/bin/berth-train"* ]]
}

@test "bad options are named" {
	for bad in --jsn json '' -modules; do
		expect 64 "$BERTH" --version "$bad"
		[[ $output == *"--version takes --modules and --json, each once; got '$bad'" ]]
	done
	expect 64 "$BERTH" --version --json twice
	[[ $output == *"got 'twice'" ]]
	expect 64 "$BERTH" --version --json --json
	expect 64 "$BERTH" --version --modules --json --modules
}

@test "output that cannot be written is an error" {
	expect 74 sh -c '"$BERTH" --version >/dev/full'
	expect 74 sh -c '"$BERTH" --version --modules >/dev/full'
}
