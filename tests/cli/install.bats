# SPDX-License-Identifier: BSD-3-Clause
# Which files `meson install` installs where, and that the installed berth works.
# BUILD: the build directory; BERTH_VERSION: the version.

load ../support/berth

setup_file() {
	ROOT=$(mktemp -d)
	export ROOT
	install_build "$ROOT" "$ROOT.log"
	# The one prefix below the folder.
	PREFIX=$(dirname "$(dirname "$(find "$ROOT" -path '*/bin/berth' -type f)")")
	export PREFIX
}

teardown_file() {
	rm -rf "$ROOT" "$ROOT.log"
}

there() { # PATTERN: exactly one file or link below the prefix
	found=$(cd "$PREFIX" && find . -path "./$1" \( -type f -o -type l \))
	[ "$(printf '%s\n' "$found" | grep -c .)" -eq 1 ] || {
		echo "expected one file $1 below the prefix; there is: ${found:-none}"
		(cd "$PREFIX" && find . -type f)
		return 1
	}
}

@test "programs are in bin" {
	there bin/berth
	there bin/berth-train
}

@test "the library, its header and its pkg-config file" {
	there include/berth.h
	there 'lib*/berth.pc'
	[ -n "$(find "$PREFIX" -name 'libberth.so*')" ]
}

@test "the modules that were built" {
	for module in $MODULES; do
		there "lib*/berth/$module.so"
	done
}

@test "programs, library and modules are hardened: PIE, RELRO, BIND_NOW, stack protector, fortified" {
	[ "$SANITIZERS" = none ] || skip "sanitizers replace it"
	count=0
	while read -r file; do
		readelf -hW "$file" 2>/dev/null | grep -q 'Type: *DYN' || { echo "$file: no PIE"; return 1; }
		readelf -lW "$file" | grep -q GNU_RELRO || { echo "$file: no RELRO"; return 1; }
		readelf -dW "$file" | grep -q 'FLAGS_1.*NOW' || { echo "$file: no BIND_NOW"; return 1; }
		readelf -sW --dyn-syms "$file" | grep -q __stack_chk_fail || { echo "$file: no stack protector"; return 1; }
		count=$((count + 1))
	done < <(find "$PREFIX/bin" "$PREFIX"/lib* -type f \( -path '*/bin/*' -o -name '*.so*' \))
	[ "$count" -ge 3 ]
	case $OPTIMIZATION in plain | 0 | g) return ;; esac
	readelf -sW --dyn-syms "$PREFIX/bin/berth" | grep -q '__[a-z]*_chk@'
}

@test "a man page for every verb" {
	[ -n "$MAN" ] || skip "built without scdoc"
	there share/man/man1/berth.1
	for verb in $("$PREFIX/bin/berth" --help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
		there "share/man/man*/berth-$verb.*"
	done
}

@test "job scripts and examples" {
	there share/berth/jobscripts/local/run.sh
	there share/berth/jobscripts/slurm/several-nodes.sh
	there share/berth/jobscripts/pbs/several-nodes.sh
	there share/berth/jobscripts/openpai/job.yaml
	for example in "$SOURCE"/examples/*; do
		[ "${example##*/}" = meson.build ] || there "share/doc/berth/examples/${example##*/}"
	done
}

@test "installed job scripts find the installed berth without PATH, and another one through PATH" {
	scripts=$PREFIX/share/berth/jobscripts
	installed=${PREFIX#"$ROOT"}/bin/berth
	expect 1 grep -rn '@bindir@' "$scripts"
	for script in local/run.sh pbs/{one-node,several-nodes,torchrun,mpi}.sh \
		slurm/{one-node,several-nodes,torchrun,mpi,array,interactive}.sh; do
		grep -qF "\$(command -v $installed ||" "$scripts/$script" || { echo "$script"; return 1; }
	done
	sed "s|$installed|$PREFIX/bin/berth|" "$scripts/pbs/one-node.sh" >"$ROOT/job.sh"
	expect 0 env -i PATH=/usr/bin:/bin PBS_O_WORKDIR="$ROOT" PROGRAM='echo rank $RANK' sh "$ROOT/job.sh"
	sed "s|$installed|/no/berth|" "$scripts/pbs/one-node.sh" >"$ROOT/job.sh"
	expect 0 env -i PATH="$PREFIX/bin:/usr/bin:/bin" PBS_O_WORKDIR="$ROOT" PROGRAM=true sh "$ROOT/job.sh"
	expect 127 env -i PATH=/usr/bin:/bin PBS_O_WORKDIR="$ROOT" PROGRAM=true sh "$ROOT/job.sh"
}

@test "bash completion" {
	there share/bash-completion/completions/berth
	bash -n "$PREFIX/share/bash-completion/completions/berth"
}

@test "a program can be built against the installed library with pkg-config" {
	command -v pkg-config >/dev/null || skip "no pkg-config"
	pc=$(find "$PREFIX" -name berth.pc)
	printf '#include <berth.h>\nint main(void) { return 0; }\n' >"$ROOT/program.c"
	# shellcheck disable=SC2046 # words
	PKG_CONFIG_PATH=$(dirname "$pc") PKG_CONFIG_SYSROOT_DIR=$ROOT \
		sh -c '${CC:-cc} -o "$1/program" "$1/program.c" $(pkg-config --cflags --libs berth)' sh "$ROOT"
	LD_LIBRARY_PATH="$(dirname "$(find "$PREFIX" -name 'libberth.so')")" "$ROOT/program"
}

@test "ninja uninstall: its list contains every installed file" {
	list=$ROOT.log
	[ -e "$list" ]
	grep -v '^#' "$list" | sort >"$ROOT/listed"
	find "$PREFIX" -type f -o -type l | sed "s#^$ROOT##" | sort >"$ROOT/found"
	while read -r file; do
		grep -qxF -- "$file" "$ROOT/listed" || grep -qxF -- "$ROOT$file" "$ROOT/listed" || { echo "not listed: $file"; return 1; }
	done <"$ROOT/found"
}

@test "module files" {
	there "share/modulefiles/berth/$BERTH_VERSION"
	there "share/modulefiles/berth/$BERTH_VERSION.lua"
	expect 1 grep -n '@' "$PREFIX/share/modulefiles/berth/"*
}

@test "the installed berth prints its version" {
	run "$PREFIX/bin/berth" --version
	[ "${lines[0]}" = "berth $BERTH_VERSION" ]
}

@test "the installed berth finds its modules" {
	case " $MODULES " in *" ranks-pmix "*) ;; *) skip "built without PMIx" ;; esac
	expect 0 env -u BERTH_MODULE_PATH "$PREFIX/bin/berth" run -n 2 -- sh -c 'echo "rank $RANK of $WORLD_SIZE"'
	[[ $output == *"rank 0 of 2"* ]]
	[[ $output == *"rank 1 of 2"* ]]
}

@test "the installed files do not contain the path of the build directory" {
	run grep -rlIF "$BUILD" "$PREFIX/bin" "$PREFIX/share" "$PREFIX"/lib*
	echo "$output"
	[ -z "$output" ]
}
