# SPDX-License-Identifier: BSD-3-Clause
# The Debian packages, built, examined, installed, used and purged in roots of the releases.
# BERTH_TEST_ROOTS: where roots and packages stay (else they are removed).

load ../support/berth
# shellcheck source=tests/releases/root.bash
. "$BATS_TEST_DIRNAME/root.bash"

setup_file() { roots_setup; }

teardown_file() { roots_teardown; }

files() { # LAYER: what lies in the root, as names and types
	root_run "$1" find / -xdev -path /proc -prune -o -path /dev -prune -o -path /sys -prune -o -path /tmp -prune -o \
		-path /var/cache -prune -o -path /var/log -prune -o -path /var/lib/apt -prune -o -path /var/lib/dpkg -prune -o -printf '%p %y\n' |
		sort
}

release() { # NAME
	local root=$ROOTS/$1 build=$ROOTS/$1-build layer=$ROOTS/$1-use before
	root_make "$1" "$root"
	rm -rf "$build" "$layer"

	# Build, as an ordinary user.
	root_layer "$root" "$build"
	mkdir -p "$build/upper/src" "$build/upper/debs"
	chmod 1777 "$build/upper/debs"
	"$SOURCE/packaging/files.sh" | tar -C "$SOURCE" -c --null -T - | tar -C "$build/upper/src" -x
	root_run "$build" sh -c 'mkdir /deps && cp -r /src/packaging/debian /deps && apt-get -qq -y --no-install-recommends install \
		lintian dpkg-dev && apt-get -qq -y --no-install-recommends build-dep /deps'
	root_user "$build" /src/packaging/deb.sh /debs
	root_user "$build" sh -c 'lintian --fail-on error,warning /debs/*.changes'

	# Install what a user installs, use it, and remove it.
	root_layer "$root" "$layer"
	mkdir -p "$layer/upper/debs"
	before=$(files "$layer")
	cp "$build"/upper/debs/*.deb "$layer/upper/debs"
	root_run "$layer" sh -c 'apt-get -qq -y install $(ls /debs/*.deb | grep -v dbgsym) gcc libc6-dev pkgconf'
	expect 0 root_user "$layer" berth --version
	expect 0 root_user "$layer" berth run -n 2 -- sh -c 'echo "rank $RANK of $WORLD_SIZE"'
	[[ $output == *"rank 1 of 2"* ]]
	expect 0 root_user "$layer" berth train convnet -n 2 --data synthetic --epochs 1 --device cpu
	[[ $output == *"Acc@1"* ]]
	expect 0 root_user "$layer" sh -c 'cc -o hello /usr/share/doc/libberth-dev/examples/hello.c $(pkg-config --cflags --libs berth) &&
		berth run -n 2 -- ./hello'
	[[ $output == *"rank 1 of 2"* ]]
	expect 0 root_user "$layer" berth run -n 2 -- python3 -c 'import berth; print("berth is", berth.rank())'
	[[ $output == *"berth is 1"* ]]
	root_run "$layer" sh -c 'rm -rf ~someone/* /debs/* && apt-get -qq -y purge "~i~nberth" &&
		apt-get -qq -y autoremove --purge gcc libc6-dev pkgconf'
	left=$(comm -13 <(echo "$before") <(files "$layer") | grep -i berth || true)
	echo "left after purge: ${left:-nothing}"
	[ -z "$left" ]
	rm -rf "$build" "$layer"
}

@test "Debian 12: packages build, pass lintian, work and leave nothing behind" { release bookworm; }

@test "Debian 13: packages build, pass lintian, work and leave nothing behind" { release trixie; }

@test "Ubuntu 24.04: packages build, pass lintian, work and leave nothing behind" { release noble; }
