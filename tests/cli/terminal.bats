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
