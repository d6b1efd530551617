# SPDX-License-Identifier: BSD-3-Clause
# The installed module files, loaded by Environment Modules and by Lmod. As Debian packages the two
# conflict, so the tests look for an installed Lmod, then for an unpacked one (LMOD_DIR, a directory
# with libexec/lmod), and else try to unpack `apt-get download lmod`.

load ../support/berth

setup_file() {
	ROOT=$(mktemp -d)
	export ROOT
	install_build "$ROOT/plain"
	PREFIX=$(dirname "$(dirname "$(find "$ROOT/plain" -path '*/bin/berth' -type f)")")
	export PREFIX MODULES_HERE=$PREFIX/share/modulefiles
	cp "$MODULES_HERE/berth/$BERTH_VERSION" "$MODULES_HERE/berth/0.0.1"
	cp "$MODULES_HERE/berth/$BERTH_VERSION.lua" "$MODULES_HERE/berth/0.0.1.lua"
	# The form for several architectures, as meson makes it for a prefix that ends with uname -m.
	mkdir -p "$ROOT/arch/berth" "$ROOT/opt/$(uname -m)/bin"
	local form
	for form in '' .lua; do
		sed -e "s#@ROOT_TCL@#[file join \"$ROOT/opt\" \$tcl_platform(machine)]#" \
			-e "s#@ROOT_LUA@#pathJoin(\"$ROOT/opt\", (capture(\"uname -m\"):gsub(\"%s+\", \"\")))#" \
			-e "s/@ARCH@/$(uname -m)/; s/@VERSION@/1/; s/@BINDIR@/bin/; s/@MANDIR@/man/" \
			-e "s/@DATADIR@/share/; s/@LIBDIR@/lib/; s/@INCLUDEDIR@/include/" \
			"$SOURCE/modulefiles/berth$form.in" >"$ROOT/arch/berth/1$form"
	done
	for LMOD in "${LMOD_DIR-}/libexec/lmod" /usr/share/lmod/*/libexec/lmod; do
		[ -x "$LMOD" ] && break
		LMOD=
	done
	if [ -z "$LMOD" ] && command -v apt-get >/dev/null; then
		(cd "$ROOT" && timeout 30 apt-get download lmod >/dev/null 2>&1 && dpkg -x lmod_*.deb lmod) || true
		LMOD=$(find "$ROOT/lmod" -path '*/libexec/lmod' 2>/dev/null | head -1)
	fi
	export LMOD
	TCLSH=$(command -v tclsh8.6 || command -v tclsh) # Debian's tcl8.6 installs no plain tclsh
	MODULECMD=$(find /usr/lib /usr/share/modules /usr/share/Modules -name modulecmd.tcl 2>/dev/null | head -1)
	export MODULECMD TCLSH
}

teardown_file() { rm -rf "$ROOT"; }

# clean COMMAND...: run it without inherited variables, except those that the module tools need.
clean() {
	env -i ${XDG_DATA_DIRS:+XDG_DATA_DIRS=$XDG_DATA_DIRS} PATH=/usr/bin:/bin HOME="$ROOT" \
		MODULEPATH="${PLACE:-$MODULES_HERE}" "$@"
}
tcl() { clean "$TCLSH" "$MODULECMD" bash "$@"; }
lua() { clean "$LMOD" bash "$@"; }
have_tcl() { [ -n "$MODULECMD" ] && [ -n "$TCLSH" ] || skip "no Environment Modules"; }
have_lua() {
	[ -n "$LMOD" ] || skip "no Lmod"
	"$LMOD" bash --version >/dev/null 2>&1 || skip "Lmod does not start here: $("$LMOD" bash --version 2>&1 | head -2)"
}

# loads FORM: check that the module sets the environment that a user needs, below the prefix.
loads() {
	expect 0 env -i PATH=/usr/bin:/bin bash -c "$("$1" load berth/"$BERTH_VERSION" 2>/dev/null)
		for name in PATH MANPATH LIBRARY_PATH LD_LIBRARY_PATH CPATH PYTHONPATH PKG_CONFIG_PATH; do echo \"\$name=\${!name}\"; done"
	for name in PATH MANPATH LIBRARY_PATH LD_LIBRARY_PATH CPATH PYTHONPATH PKG_CONFIG_PATH; do
		value=$(sed -n "s/^$name=//p" <<<"$output")
		[ -d "$ROOT/plain${value%%:*}" ] # the directory exists where it was installed
	done
	grep -q '^PATH=.*/bin:/usr/bin:/bin$' <<<"$output"
	grep -qE '^MANPATH=.*/man:+$' <<<"$output" # man's own directories stay
	[ -x "$ROOT/plain$(sed -n 's/^PATH=\([^:]*\).*/\1/p' <<<"$output")/berth" ]
	[ -e "$ROOT/plain$(sed -n 's/^PKG_CONFIG_PATH=\([^:]*\).*/\1/p' <<<"$output")/berth.pc" ]
}

# completes FORM: check that bash finds the completion after a load, and that an unload leaves the user's own
# directories.
completes() {
	local data=${PREFIX#"$ROOT/plain"}/share
	for before in '' /mine:/usr/share; do
		expect 0 env -i PATH=/usr/bin:/bin ${before:+XDG_DATA_DIRS=$before} bash -c "
			$(XDG_DATA_DIRS=$before "$1" load berth/"$BERTH_VERSION" 2>/dev/null)
			echo \"\$XDG_DATA_DIRS\""
		wanted=$data:${before:-/usr/local/share:/usr/share}
		[ "$output" = "${wanted/#\/usr\/local\/share:\/usr\/local\/share:/\/usr\/local\/share:}" ]
	done
	[ -e "$ROOT/plain$data/bash-completion/completions/berth" ]
}

# speaks FORM: check help and whatis, and that two versions at once are refused.
speaks() {
	run "$1" help berth/"$BERTH_VERSION"
	echo "$output"
	[[ "$output" == *"See man berth"* ]]
	run "$1" whatis berth/"$BERTH_VERSION"
	echo "$output"
	[[ "$output" == *"starts training jobs"* ]]
}

@test "Environment Modules: load, help, whatis, conflict" {
	have_tcl
	loads tcl
	completes tcl
	speaks tcl
	run env -i PATH=/usr/bin:/bin bash -c "$(tcl load berth/"$BERTH_VERSION" 2>/dev/null)
		MODULEPATH=$MODULES_HERE $TCLSH $MODULECMD bash load berth/0.0.1"
	echo "$output"
	[[ "$output" == *onflict* ]]
}

@test "Lmod: load, help, whatis" {
	have_lua
	loads lua
	completes lua
	speaks lua
}

@test "a module file for several architectures chooses the build for uname -m" {
	have_tcl
	PLACE=$ROOT/arch
	run tcl load berth/1
	echo "$output"
	[[ "${output//\'/}" == *"PATH=$ROOT/opt/$(uname -m)/bin:"* ]] # newer versions quote it
	mv "$ROOT/opt/$(uname -m)" "$ROOT/opt/another"
	run tcl load berth/1
	mv "$ROOT/opt/another" "$ROOT/opt/$(uname -m)"
	echo "$output"
	[[ "$output" == *"no build for this machine"* ]]
	[[ "$output" != *"export PATH"* ]]
}

@test "the same with Lmod" {
	have_lua
	PLACE=$ROOT/arch
	run lua load berth/1
	echo "$output"
	[[ "$output" == *"PATH=$ROOT/opt/$(uname -m)/bin:"* ]]
	mv "$ROOT/opt/$(uname -m)" "$ROOT/opt/another"
	run lua load berth/1
	mv "$ROOT/opt/another" "$ROOT/opt/$(uname -m)"
	echo "$output"
	[[ "$(tr -s "[:space:]" " " <<<"$output")" == *"no build for this machine"* ]] # Lmod wraps lines
}
