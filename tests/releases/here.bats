# SPDX-License-Identifier: BSD-3-Clause
# The packages that this machine can build by itself.

load ../support/berth

@test "the Debian packages build, hold every installed file, and pass lintian" {
	need dh debhelper
	need dh_python3 dh-python
	need lintian
	# Without CUDA's module: compiling its kernels takes longer than everything else.
	expect 0 env DEB_BUILD_PROFILES=pkg.berth.none "$SOURCE/packaging/deb.sh" "$DIR/debs"
	[ "$(dpkg-deb -f "$DIR"/debs/berth_*.deb Version)" = "$(dpkg-deb -f "$DIR"/debs/libberth0_*.deb Version)" ]
	expect 0 lintian --fail-on error,warning "$DIR"/debs/*.changes
}

@test "packages built from a tarball have the files that those from a clone have" {
	need git
	[ -e "$SOURCE/.git" ] || skip "no clone"
	git -C "$SOURCE" archive --format tar --prefix berth/ HEAD | tar -x -C "$DIR"
	"$DIR/berth/packaging/files.sh" | tr '\0' '\n' | sed 's|^\./||' | sort >"$DIR/tarball"
	git -C "$SOURCE" ls-tree -r --name-only HEAD | sort | diff - "$DIR/tarball"
}

@test "files that name the version name that of the source" {
	cd "$SOURCE"
	grep -qx "version = \"$BERTH_VERSION\"" lib/python/pyproject.toml
	grep -qx "Version:  *$BERTH_VERSION" packaging/berth.spec
	grep -qF "version(\"$BERTH_VERSION\")" packaging/spack/packages/berth/package.py
	grep -qx "version = '$BERTH_VERSION'" "packaging/easybuild/berth-$BERTH_VERSION-system.eb"
}
