# SPDX-License-Identifier: BSD-3-Clause
# libberth: the example under each launcher, and against an installed tree.
# HELLO: the built example.

load ../support/berth

@test "without a launcher: rank 0 of 1" {
	expect 0 env -u RANK -u WORLD_SIZE -u PMIX_NAMESPACE "$HELLO"
	[[ $output == *"rank 0 of 1, 0 on node 0"* ]]
	[[ $output != *"job ends"* ]]
}

@test "berth_end_time: from the variable, or from the file if berth learns it later" {
	make_dir
	now=$(date +%s)
	set -- env -u RANK -u WORLD_SIZE -u PMIX_NAMESPACE BERTH_END_TIME=$((now + 3600)) BERTH_END_TIME_FILE="$DIR/end"
	expect 0 "$@" "$HELLO"
	[[ $output =~ "rank 0: the job ends in 3"[0-9]{3}" s" ]]
	for wrong in '' soon -1 0 1.5; do
		echo "$wrong" >"$DIR/end"
		expect 0 "$@" "$HELLO"
		[[ $output =~ "rank 0: the job ends in 3"[0-9]{3}" s" ]]
	done
	echo $((now + 72000)) >"$DIR/end"
	expect 0 "$@" "$HELLO"
	[[ $output =~ "rank 0: the job ends in 7"[0-9]{4}" s" ]]
}

@test "under berth run: place, plan, exchange" {
	expect 0 "$BERTH" run -n 3 -- "$HELLO"
	for rank in 0 1 2; do
		[[ $output == *"rank $rank of 3, $rank on node 0, meets rank 0 at 127.0.0.1 port "* ]]
		[[ $output == *"rank $rank: rank $(((rank + 1) % 3)) is process"* ]]
	done
	[[ $output != *"not bound"* ]]
}

@test "with only RANK and WORLD_SIZE" {
	port=$((20000 + RANDOM % 10000))
	dir=$(mktemp -d)
	for rank in 0 1; do
		env RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
			"$HELLO" >"$dir/$rank" 2>&1 &
		pids[rank]=$!
	done
	wait "${pids[0]}"
	wait "${pids[1]}"
	cat "$dir"/*
	grep -q 'rank 1 is process' "$dir/0"
	grep -q 'rank 0 is process' "$dir/1"
	rm -rf "$dir"
}

@test "contradictory variables are named" {
	expect 1 env RANK=1 "$HELLO"
	[[ $output == *"WORLD_SIZE is not"* ]]
	expect 1 "$BERTH" run -n 2 -- env RANK=5 WORLD_SIZE=9 LOCAL_RANK=0 "$HELLO"
	[[ $output == *"PMIx"*"rank 5 of 9"* ]]
}

@test "exports berth_* and nothing else" {
	lib=$(find "$BUILD/lib" -maxdepth 1 -name 'libberth.so' | head -1)
	[ -n "$lib" ]
	run nm -D --defined-only "$lib"
	[ "$(awk '{print $3}' <<<"$output" | grep -c '^berth_')" -ge 20 ]
	[ -z "$(awk '{print $3}' <<<"$output" | grep -v '^berth_')" ]
}

@test "no function that libberth.so.0 once had is gone: else the soversion has to rise" {
	soname=$(readelf -d "$BUILD/lib/libberth.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
	expect 0 nm -D --defined-only "$BUILD/lib/libberth.so"
	# A new function gets a line in this file.
	diff <(awk '{print $3}' <<<"$output" | sort) "$SOURCE/tests/golden/$soname"
}

@test "modules export their tables and nothing else" {
	for module in "$BUILD"/lib/modules/*.so; do
		run nm -D --defined-only "$module"
		echo "$module: $output"
		[ -n "$output" ]
		[ -z "$(awk '$2 !~ /[DBR]/' <<<"$output")" ]
	done
}

@test "the example compiles against an installed tree" {
	command -v pkg-config >/dev/null || skip "no pkg-config"
	[ -z "$SANITIZED" ] || skip "a plain program cannot load a library built with ASan"
	root=$(mktemp -d)
	install_build "$root"
	pc=$(find "$root" -name berth.pc)
	example=$(find "$root" -name hello.c -path '*/examples/*')
	lib=$(dirname "$(find "$root" -name libberth.so)")
	[ -n "$pc" ] && [ -n "$example" ]
	flags=$(PKG_CONFIG_PATH=$(dirname "$pc") PKG_CONFIG_SYSROOT_DIR=$root pkg-config --cflags --libs berth)
	echo "flags: $flags"
	# shellcheck disable=SC2086
	cc -Wall -Wextra -Werror "$example" $flags -o "$root/hello"
	expect 0 env LD_LIBRARY_PATH="$lib" "$root/hello"
	expect 0 env LD_LIBRARY_PATH="$lib" "$BERTH" run -n 2 -- "$root/hello"
	[[ $output == *"rank 1 of 2"* ]]
	# The header alone, as C and as C++.
	echo '#include <berth.h>' >"$root/alone.c"
	# shellcheck disable=SC2086
	cc -std=c99 -pedantic -Wall -Wextra -Werror -fsyntax-only "$root/alone.c" $flags
	if command -v c++ >/dev/null; then
		cp "$root/alone.c" "$root/alone.cc"
		# shellcheck disable=SC2086
		c++ -Wall -Wextra -Werror -fsyntax-only "$root/alone.cc" $flags
	fi
	rm -rf "$root"
}
