# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# Two ordinary users on one node: 12345 runs berth, 12346 attacks. Each attack has a control: the same without
# the attacker, or without the defence, so that a case cannot pass because the attack itself is wrong.

VICTIM=12345 ATTACKER=12346

# as USER COMMAND...: run it as another user, without inherited variables.
as() {
	${EXEC-} setpriv --reuid "$1" --regid "$1" --clear-groups env -i PATH="$PATH" HOME="${HOME_OF_USER:-/tmp}" \
		LD_LIBRARY_PATH="${LD_LIBRARY_PATH-}" ASAN_OPTIONS="${ASAN_OPTIONS-}:detect_leaks=0" "${@:2}"
}

two_users() {
	[ "$(id -u)" = 0 ] && command -v setpriv >/dev/null || skip "needs root and setpriv to become other users"
	chmod 1777 "$DIR"
	as $VICTIM test -x "$BERTH" || skip "other users cannot read the build"
}
