# SPDX-License-Identifier: BSD-3-Clause
# The tarball of meson dist, and the RPM packages, with Debian's rpm tools: --nodeps, because RPM knows nothing of
# Debian's packages.

load ../support/berth

@test "the tarball builds without git; the RPM packages install, work and are erased" {
	need rpmbuild rpm
	need git
	[ -e "$SOURCE/.git" ] || skip "no clone"
	git clone -q "$SOURCE" "$DIR/clone"
	expect 0 meson setup "$DIR/build" "$DIR/clone" -Dtests=disabled
	expect 0 meson dist -C "$DIR/build" --no-tests
	expect 0 rpmbuild --define "_topdir $DIR/rpm" --nodeps -ta "$DIR"/build/meson-dist/berth-*.tar.xz
	packages=("$DIR"/rpm/RPMS/*/*.rpm)
	[ ${#packages[@]} -eq 4 ]
	mkdir "$DIR/root"
	rpm --root "$DIR/root" --initdb
	expect 0 rpm --root "$DIR/root" -i --nodeps "${packages[@]}"
	expect 0 "$DIR/root/usr/bin/berth" --version
	[ "${lines[0]}" = "berth $BERTH_VERSION" ]
	expect 0 "$DIR/root/usr/bin/berth" run -n 2 -- sh -c 'echo "rank $RANK of $WORLD_SIZE"'
	[[ $output == *"rank 1 of 2"* ]]
	expect 0 rpm --root "$DIR/root" -e --nodeps berth berth-libs berth-devel python3-berth
	left=$(find "$DIR/root" -path '*/lib/rpm' -prune -o -name '*berth*' -print)
	echo "left: ${left:-nothing}"
	[ -z "$left" ]
}
