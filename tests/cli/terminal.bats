# SPDX-License-Identifier: BSD-3-Clause
# berth run on a terminal: rank 0 reads what is typed there.

load ../support/berth

setup() {
	make_dir
	cat >ask.py <<-'P'
	import os, sys
	rank = os.environ['RANK']
	if rank == '0':
	    print('hello', input('name? '), flush=True)
	    for line in sys.stdin:
	        print('line', line.strip(), flush=True)
	print('end of', rank)
	P
}

# typed STEPS: a shell on a terminal, where STEPS are typed; see tests/support/terminal.py.
typed() { expect "$1" timeout 300 python3 "$SOURCE/tests/support/terminal.py" - BERTH="$BERTH" "${@:2}"; }

@test "rank 0 reads the terminal: a prompt, lines, Ctrl-D" {
	for launcher in fork 'loopback -N 2'; do
		typed 3 LAUNCHER="$launcher" <<-'S'
		< ready>
		> $BERTH run -q --launcher $LAUNCHER -n 2 -- python3 ask.py
		< name\? 
		> Ada
		< hello Ada
		> one
		< line one
		> \x04\c
		< end of 0
		< ready>
		> exit 3
		S
		[ "$(grep -c '^end of' <<<"$output")" = 2 ]
	done
}

@test "Ctrl-C ends the job, python -i and a debugger take commands" {
	typed 0 <<-'S'
	< ready>
	> $BERTH run -q -n 1 -- python3 -iq
	< >>> 
	> 6 * 7
	< 42
	> breakpoint()
	< \(Pdb\) 
	> p 17 + 1
	< 18
	< \(Pdb\) 
	> c
	< >>> 
	> 80 + 1
	< 81
	> import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)
	< Handlers|sigint_handler
	> \x03\c
	< ready>
	> echo "code $?"
	< code 130
	> exit 0
	S
}

@test "a job in the background takes no input, and is not stopped; in the foreground it reads" {
	typed 0 <<-'S'
	< ready>
	> $BERTH run -q -n 1 -- sh -c 'touch up; read name; echo "go""t $name"; until [ -e done ]; do sleep 0.1; done; echo over' &
	< ready>
	> until [ -e up ]; do sleep 0.1; done; echo "is"" up"
	< is up
	> sleep 2; echo "state $(jobs)"
	< state \[.*Running
	! got
	> fg
	> Ada
	< got Ada
	> \x1a\c
	< Stopped
	> jobs; echo "read"" by the shell"
	< read by the shell
	> bg; sleep 1; jobs; touch done; wait; echo "all"" done"
	< Running
	< over
	< all done
	> exit 0
	S
}

@test "--pty: rank 0 has a terminal of its own, with job control and its size; the user's is as before" {
	for launcher in fork 'loopback -N 2'; do
		typed 0 LAUNCHER="$launcher" <<-'S'
		< ready>
		= 33 99
		> stty -g >before
		> $BERTH run -q --launcher $LAUNCHER -n 2 --pty -- sh -c 'if [ $RANK = 0 ]; then exec bash --norc -i; fi
		> tty; echo "other"" rank"'
		< not a tty
		< other rank
		> tty; stty size; echo "rank"" $RANK of $WORLD_SIZE"
		< dev/pts/
		< 33 99
		< rank 0 of 2
		= 40 120
		> sh -c 'until [ "$(stty size)" = "40 120" ]; do sleep 0.1; done; echo "new"" size"; exec sleep 100'
		< new size
		> \x03\c
		< \^C
		> echo "code"" $?"
		< code 130
		> sh -c 'echo "st""arted"; exec sleep 100'
		< started
		> \x1a\c
		< Stopped
		> kill %1; python3 -q
		< >>> 
		> 6 * 7
		< 42
		# Before its prompt python reads whole lines, and an early Ctrl-D is lost on the way.
		< >>> 
		> \x04\c
		< ready>
		> exit 5
		< rank 0 on .* exited with code 5
		< ready>
		> stty -g >after; cmp before after && echo "as"" before"
		< as before
		> exit 0
		S
	done
}

@test "once rank 0 has ended, keys are for the shell and Ctrl-C for the job" {
	for option in --nested --pty; do
		rm -f pid pid2
		typed 0 OPTION="$option" TIME=2 <<-'S'
		< ready>
		> $BERTH run -q $OPTION -n 2 -- sh -c 'if [ $RANK = 0 ]; then echo "fir""st"; echo $$ >pid; exit 0; fi
		> until [ -s pid ] && ! kill -0 $(cat pid) 2>/dev/null; do sleep 0.1; done
		> echo "go""ing"; exec sleep $TIME'
		< first
		< going
		> echo "typed"" ahead"; TIME=100
		< typed ahead
		> $BERTH run -q $OPTION -n 2 -- sh -c 'if [ $RANK = 0 ]; then echo "ne""xt"; echo $$ >pid2; exit 0; fi
		> until [ -s pid2 ] && ! kill -0 $(cat pid2) 2>/dev/null; do sleep 0.1; done
		> echo "ag""ain"; exec sleep $TIME'
		< next
		< again
		> \x03\c
		< ready>
		> echo "code $?"
		< code 130
		> exit 0
		S
	done
}

@test "--pty: what it does not work with" {
	while IFS='|' read -r options message; do
		expect 64 "$BERTH" run -n 1 $options -- true </dev/null
		[[ $output == *"$message"* ]]
	done <<-'E'
	--pty|--pty needs a terminal as standard input
	--pty --label|--pty conflicts with --label
	--pty --collapse on|--pty conflicts with --collapse on
	--pty=yes|pty' doesn
	E
	expect 64 "$BERTH" run -n 1 --pty -- true <<<text
	expect 64 "$BERTH" train convnet --data synthetic:1x28x28 --steps 1 --pty
	[[ $output == *"--pty has no effect on berth train, whose ranks read no standard input"* ]]
	expect 0 "$BERTH" run --dry-run --pty -n 1 -- true
}
