# SPDX-License-Identifier: BSD-3-Clause
# What another user can do to a job through files in directories that both can write.

load ../support/berth
load ../support/users

# plant NAME: the attacker puts a Python module into the working directory. Whoever imports it leaves a trace, "owned.UID".
plant() {
	as $ATTACKER sh -c 'echo "import os; open(f\"$1/owned.{os.geteuid()}\", \"w\")" >"$1/$2"' sh "$DIR" "$1"
}

@test "Python that berth runs imports nothing from the working directory: --ray and berth check of an image" {
	two_users
	plant csv.py
	plant socket.py
	ray=(env "PATH=$FIXTURES/ray:$PATH" "PYTHONPATH=$FIXTURES/ray" TMPDIR=/tmp)
	# The control: Python itself does import it.
	as $VICTIM python3 -c 'import csv'
	rm owned.$VICTIM
	expect 0 as $VICTIM "${ray[@]}" timeout -k 5 30 "$BERTH" run --ray -- sh -c 'ray status'
	[[ $output == *' 1 node_127.0.0.1'* ]]
	[ ! -e owned.$VICTIM ]
	# What berth check runs in an image; it finds packages in PYTHONPATH.
	mkdir -p packages/torch-2.9.9.dist-info
	printf 'Metadata-Version: 2.1\nName: torch\nVersion: 2.9.9\n' >packages/torch-2.9.9.dist-info/METADATA
	chmod -R a+rX packages
	expect 0 as $VICTIM env PYTHONPATH="$DIR/packages" sh "$SOURCE/lib/check/probes/image.sh"
	[[ $output == *PyTorch=2.9.9* ]]
	[ ! -e owned.$VICTIM ]
}

@test "py-spy is taken from PATH or an absolute path, not from python3/ in the working directory" {
	two_users
	as $ATTACKER sh -c 'mkdir python3; printf "#!/bin/sh\nid -u >owned; echo planted\n" >python3/py-spy; chmod -R a+rx python3'
	mkdir bin
	ln -s "$(as $VICTIM python3 -c 'import sys; print(sys.executable)')" bin/python3
	fake py-spy "echo '    step (train.py:3)'"
	chmod -R a+rx bin
	for program in python3 "$DIR/bin/python3"; do
		path=$PATH
		[ "$program" != python3 ] || path=$DIR/bin:$PATH
		expect 76 as $VICTIM env TMPDIR=/tmp PATH="$path" "$BERTH" run -n 2 --hang-timeout 2 -- "$program" -c 'import time; time.sleep(61)'
		[[ $output == *"| rank 0, "*"step (train.py:3)"* ]]
		[[ $output != *planted* ]]
	done
}
