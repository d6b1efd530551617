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

@test "a directory or a link of another user: --log-dir, --report and --metrics of the trainer follow neither" {
	two_users
	mkdir -p home shared site/project
	chown $VICTIM home
	chmod 1777 shared
	chown $ATTACKER site/project
	chmod 777 site/project
	echo old >home/rc
	chown $VICTIM home/rc
	as $ATTACKER sh -c 'mkdir shared/out && chmod 777 shared/out && cd shared/out && ln -s ../../home/rc rank-0000.log &&
		ln -s ../../home/rc report.json && ln -s ../../home/rc metrics.jsonl && ln -s ../../home/rc r && ln -s "$PWD" ../../site/project/out'
	job=(as $VICTIM env TMPDIR=/tmp "$BERTH" run -n 1)
	train=(as $VICTIM env TMPDIR=/tmp "$BERTH" train linear --data synthetic:8,n=32 --batch 8 --device cpu-reference -n 1 --steps 1)
	# The control: the kernel itself follows them.
	as $VICTIM sh -c 'cat shared/out/rank-0000.log site/project/out/r' | grep -c old | grep -qx 2
	for dir in shared/out shared/out/new shared/../shared/out "$DIR/shared/out"; do
		expect 73 "${job[@]}" --log-dir "$dir" -- echo planted
		[[ $output == *"shared/out belongs to user $ATTACKER, in a directory that everyone can write; choose another directory"* ]]
	done
	expect 73 "${job[@]}" --report shared/out/r -- true
	[[ $output == *"--report: shared/out belongs to user $ATTACKER"* ]]
	expect 73 "${train[@]}" --metrics shared/out
	[[ $output == *"shared/out belongs to user $ATTACKER"* ]]
	# A link as a directory of the path, as its end, and behind a link of one's own
	as $VICTIM ln -s "$DIR/site/project/out" home/mine
	for dir in site/project/out site/project/out/deep home/mine; do
		expect 73 "${job[@]}" --log-dir "$dir" -- true
		[[ $output == *"/project/out is a symbolic link of user $ATTACKER; name its target instead"* ]]
	done
	as $ATTACKER sh -c 'rm site/project/out; ln -s ../../home/rc site/project/r; ln -s ../../home/rc site/project/rank-0000.log'
	expect 73 "${job[@]}" --report site/project/r -- true
	expect 73 "${job[@]}" --log-dir site/project -- echo planted
	[[ $output == *"site/project/rank-0000.log is a symbolic link of user $ATTACKER"* ]]
	[ "$(cat home/rc)" = old ]
	# What a user may do: a colleague's directory, new ones in a directory like /tmp, links of root and one's own, open files
	rm -f site/project/*
	ln -s site/project scratch
	as $VICTIM ln -s ../scratch home/own
	for dir in site/project site/project/a/b shared/mine home/own/c scratch/../project/d "$DIR/home/e"; do
		expect 0 "${job[@]}" --log-dir "$dir" --report "$dir/r.json" -- echo logged
		grep -q logged "$dir/rank-0000.log"
		grep -q berth.run "$dir/r.json"
	done
	(cd home && expect 0 as $VICTIM env TMPDIR=/tmp "$BERTH" run -n 1 --log-dir . --report r.json -- true)
	expect 0 as $VICTIM sh -c '"$0" report -o /dev/stdout site/project/r.json | cat' "$BERTH"
	[[ $output == *"<html"* ]]
	expect 0 "${train[@]}" --metrics site/project/m
}

@test "BERTH_IMAGES: an image, a lock or a directory of another user is refused at once; root's image is used" {
	two_users
	mkdir images closed bin
	chmod 1777 images
	chown $VICTIM closed
	# Pulls DIR/image.sif, and runs what follows the image.
	fake apptainer 'case "$*" in
pull*) eval "part=\${$(($# - 1))}"; cp "$IMAGE" "$part" ;;
*) while [ "$1" != "${1%.sif}" ] || [ $# -gt 0 ]; do case $1 in *.sif) cat "$1" | head -c 4; shift; exec "$@" ;; esac; shift; done ;;
esac'
	chmod -R a+rx bin
	{ printf hsqs; head -c 8188 /dev/zero; } >image
	printf '\x00\x10' | dd of=image bs=1 seek=40 conv=notrunc 2>/dev/null
	chmod 644 image
	job() { expect "$1" as $VICTIM env TMPDIR=/tmp PATH="$DIR/bin:$PATH" IMAGE="$DIR/image" BERTH_IMAGES="$2" \
		timeout -k 5 20 "$BERTH" run -n 1 --container docker://x/y:1 --container-runtime apptainer -- true; }
	name=docker%3A%2F%2Fx%2Fy%3A1.sif
	refused() { [[ $output == *"--container: $1 belongs to user $ATTACKER and has mode $2: others could change the image"* ]]; }
	as $ATTACKER install -m 666 image "images/$name"
	job 73 "$DIR/images"
	refused "$DIR/images/$name" 666
	as $ATTACKER sh -c 'rm "$1"; ln -s "$2" "$1"' sh "images/$name" "$DIR/image"
	job 73 "$DIR/images"
	[[ $output == *"cannot open $DIR/images/$name: Too many levels of symbolic links"* ]]
	rm "images/$name"
	# A lock that stays locked
	EXEC=exec as $ATTACKER sh -c 'umask 0; exec flock --no-fork "$1" sleep 60' sh "images/$name.lock" 3>&- &
	locks=$!
	within 10 test -e "images/$name.lock"
	job 73 "$DIR/images"
	kill $locks
	[[ $output == *"$name.lock"* ]]
	as $ATTACKER mkdir -m 777 images/theirs
	job 73 "$DIR/images/theirs"
	[[ $output == *"images/theirs belongs to user $ATTACKER"* ]]
	# Where no other user can write, and where root has put an image
	job 0 "$DIR/closed"
	[ "$(stat -c '%u %a' "closed/$name.lock")" = "$VICTIM 600" ]
	chmod g+w "closed/$name"
	job 73 "$DIR/closed"
	chown -R 0 closed
	chmod -R go-w closed
	rm closed/*.lock
	job 0 "$DIR/closed"
	[[ $output != *pulling* ]]
}
