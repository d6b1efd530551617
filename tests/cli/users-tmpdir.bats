# SPDX-License-Identifier: BSD-3-Clause
# Another user, or a program in a container, prepares what berth removes or runs: directories in TMPDIR.

load ../support/berth
load ../support/users

LOCK=lock-$(cat /proc/sys/kernel/random/boot_id)

# words WORD...: a command line in the form that earlier versions kept in at-end.
words() { printf '%s\0' "$@"; }

# prepare MODE: the victim's directory $DIR/data, with a file, that the attacker makes look like a directory of berth's
# whose processes have ended, as far as the directory's mode lets it.
prepare() {
	two_users
	mkdir tmp
	chmod 777 tmp
	cd tmp
	as $VICTIM mkdir data
	as $VICTIM touch data/kept
	as $VICTIM chmod "$1" data
	as $ATTACKER sh -c 'umask 0; : >"data/$0"' "$LOCK" 2>/dev/null || true
	words /bin/sh -c "touch $DIR/tmp/canary" >words
	chmod 644 words
	as $ATTACKER sh -c 'cat words >data/at-end' 2>/dev/null || true
	as $ATTACKER mv data berth-AAAAAA
	cd ..
}

run_in_tmp() { expect 0 as $VICTIM TMPDIR="$DIR/tmp" "$BERTH" run -n 1 -- true; }

@test "a directory of mine that another user has renamed into TMPDIR is neither run nor removed" {
	prepare 777
	[ -e tmp/berth-AAAAAA/at-end ] # the attack takes place
	run_in_tmp
	[ -e tmp/berth-AAAAAA/kept ]
	[ ! -e tmp/canary ]
}

@test "the same with a directory that only its group can write" {
	prepare 770
	run_in_tmp
	[ -e tmp/berth-AAAAAA/kept ]
}

@test "the same with a private directory, which has no lock" {
	prepare 700
	run_in_tmp
	[ -e tmp/berth-AAAAAA/kept ]
}

@test "a link in TMPDIR to a private directory of mine that has a lock is not followed" {
	two_users
	mkdir -p tmp
	chmod 777 tmp "$DIR"
	as $VICTIM mkdir -m 700 data
	as $VICTIM touch data/kept "data/$LOCK"
	as $ATTACKER ln -s ../data tmp/berth-AAAAAA
	run_in_tmp
	[ -e data/kept ]
}

@test "a lock that is a link, or that others can write, is none" {
	two_users
	mkdir -p tmp
	chmod 777 tmp
	as $VICTIM mkdir -m 700 tmp/berth-AAAAAA tmp/berth-BBBBBB
	as $VICTIM touch file
	as $VICTIM ln -s ../../file "tmp/berth-AAAAAA/$LOCK"
	as $VICTIM touch "tmp/berth-BBBBBB/$LOCK"
	chmod 666 "tmp/berth-BBBBBB/$LOCK"
	run_in_tmp
	[ -e tmp/berth-AAAAAA ]
	[ -e tmp/berth-BBBBBB ]
}

@test "control: a directory of berth's own whose processes have ended is removed" {
	two_users
	mkdir -p tmp
	chmod 777 tmp
	as $VICTIM mkdir -m 700 tmp/berth-AAAAAA
	as $VICTIM touch "tmp/berth-AAAAAA/$LOCK"
	words /bin/sh -c "touch $DIR/tmp/canary" >tmp/berth-AAAAAA/at-end
	run_in_tmp
	[ ! -e tmp/berth-AAAAAA ]
	[ ! -e tmp/canary ] # nothing in a directory is run, whoever wrote it
}

@test "TMPDIR that another user has made in a directory like /tmp is refused; mine and root's are not" {
	two_users
	as $ATTACKER mkdir -m 777 "$DIR/theirs"
	as $VICTIM mkdir "$DIR/mine"
	mkdir -m 1777 "$DIR/of_root"
	expect 76 as $VICTIM TMPDIR="$DIR/theirs" "$BERTH" run -n 1 -- true
	[[ $output == *"TMPDIR: $DIR/theirs belongs to user $ATTACKER"* ]]
	as $ATTACKER mkdir -p "$DIR/theirs/below"
	expect 76 as $VICTIM TMPDIR="$DIR/theirs/below" "$BERTH" run -n 1 -- true
	as $ATTACKER ln -s "$DIR/mine" "$DIR/link"
	expect 76 as $VICTIM TMPDIR="$DIR/link" "$BERTH" run -n 1 -- true
	[[ $output == *"symbolic link of user $ATTACKER"* ]]
	for dir in mine of_root; do
		expect 0 as $VICTIM TMPDIR="$DIR/$dir" "$BERTH" run -n 1 -- true
	done
}

@test "a rank can put nothing before the guardian that it runs after the end" {
	two_users
	chmod 777 "$DIR"
	words /bin/sh -c "touch $DIR/canary" >words
	expect 0 as $VICTIM "$BERTH" run -n 1 -- sh -c 'cp words "${BERTH_PLAN_FILE%/*}/at-end"'
	[ ! -e canary ]
	[ -z "$SANITIZED" ] || skip "this build is dumpable"
	# shellcheck disable=SC2016
	expect 0 as $VICTIM "$BERTH" run -n 1 -- sh -c 'for fd in /proc/$PPID/fd/*; do
		case $(readlink "$fd") in pipe:*) cat words >"$fd" ;; esac; done 2>/dev/null; true'
	[ ! -e canary ]
}

@test "control: the guardian removes the containers of Docker, also if the agent is killed" {
	mkdir -p bin image
	cat >bin/docker <<-'P'
	#!/bin/sh
	printf '%s ' "$@" >>"$SEEN"
	echo >>"$SEEN"
	case $1 in
	run) while [ "$1" != -- ] && [ $# -gt 0 ] && [ "$1" != image ]; do shift; done; shift; exec "$@" ;;
	esac
	P
	chmod +x bin/docker
	export SEEN=$DIR/seen PATH=$DIR/bin:$PATH
	expect 0 "$BERTH" run -n 2 --container image --container-runtime docker -- true
	cat seen
	[ "$(grep -c '^rm --force berth-' seen)" = 1 ]
	grep -qE '^rm --force berth-[A-Za-z0-9]{6}-0 berth-[A-Za-z0-9]{6}-1 $' seen
	rm seen
	# shellcheck disable=SC2016
	expect 76 "$BERTH" run -n 1 --container image --container-runtime docker -- sh -c 'kill -KILL $PPID; sleep 1000'
	grep -q '^rm --force berth-' seen
}
