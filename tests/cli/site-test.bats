# SPDX-License-Identifier: BSD-3-Clause
# berth site-test: options, results on this machine, the bundle and what must not be in it. tests/cluster has the jobs.

load ../support/berth

# with_plan FILE: the plan in a bundle is what berth plan prints for it.
with_plan() {
	python3 - "$1" <<-'PY' >"$DIR/plan"
	import sys
	import xml.etree.ElementTree as tree
	for info in tree.parse(sys.argv[1]).iter('info'):
	    if info.get('name') == 'BerthPlan':
	        print(info.get('value'))
	PY
	[ -s "$DIR/plan" ]
	"$BERTH" plan --topology "$1" | diff "$DIR/plan" -
}

# absent FILE PATTERN: no line of FILE matches.
absent() {
	if grep -E -- "$2" "$1"; then
		echo "found $2 in $1"
		return 1
	fi
}

@test "bad options and directories" {
	refuses() { expect "$1" "$BERTH" site-test "${@:3}" && [[ $output == "berth: error: "*"$2"* ]]; }
	refuses 64 "unknown option '--nodes'" --nodes 2
	refuses 64 "unexpected argument 'results'" results
	refuses 64 "'--out' needs a value" --out
	refuses 64 "'--ckpt' needs a value" --ckpt=
	refuses 64 "are for a machine with sbatch or qsub" --here -- --queue gpu
	mkdir bin
	cp "$BERTH" bin/berth
	BERTH=bin/berth refuses 69 "the site test is not installed: there is no $DIR/share/"
	refuses 66 "'$DIR/no' is not a directory" --here --ckpt no
	touch file
	refuses 73 "cannot create '$DIR/file/out/logs'" --here --out file/out
	mkdir mine
	touch mine/node-7
	refuses 73 "'$DIR/mine' holds other files" --here --out mine
	refuses 66 "has no results.tsv" --bundle site.xml
	mkdir -p full/logs
	touch full/results.tsv full/names full/node-0.{xml,nics} full/logs/{version,info}.log
	refuses 64 "does not end in .xml" --out full --bundle site.txt
	refuses 64 "takes no options of berth submit" --out full --bundle site.xml -- --queue gpu
	refuses 73 "'no/such' is not a directory" --out full --bundle no/such/site.xml
	touch old.xml
	refuses 73 "'old.xml' exists" --out full --bundle old.xml
	touch two.1.xml
	refuses 73 "'two.1.xml' exists" --out full --bundle two.xml
	refuses 65 "cannot plan with" --out full --bundle site.xml
	[ ! -e site.xml ]
	[ -e mine/node-7 ]
}

@test "a job is made for sbatch or qsub, with the user's options" {
	unset SLURM_JOB_ID PBS_JOBID
	fake sbatch
	export HOME=$DIR PATH=$DIR/bin:$PATH PBS_CONF_FILE=/nonexistent
	expect 0 "$BERTH" site-test --out site -- --dry-run --slurm --queue gpu --nodes 3
	[[ $output == *"#SBATCH --nodes=3"*"#SBATCH --time=00:10:00"*"#SBATCH --partition=gpu"*"#SBATCH --requeue"* ]]
	[[ $output == *"berth site-test --requeue --out=$DIR/site --ckpt=$DIR/site"* ]]
	expect 0 "$BERTH" site-test -- --dry-run --pbs
	[[ $output == *"#PBS -l select=2"*"#PBS -l walltime=00:10:00"* ]]
}

# secret_topology FILE: a machine whose names, addresses and serial numbers the tests know.
secret_topology() {
	python3 - "$FIXTURES/topo/gb200.xml" "$1" <<-'PY'
	import sys
	import xml.etree.ElementTree as tree
	doc = tree.parse(sys.argv[1])
	def info(obj, **infos):
	    for name, value in infos.items():
	        obj.insert(0, tree.Element('info', {'name': name, 'value': value}))
	def obj(parent, **attributes):
	    return tree.SubElement(parent, 'object', attributes)
	root = doc.getroot()
	for machine in root.findall('object'):
	    for old in [i for i in machine.findall('info') if i.get('name') == 'HostName']:
	        machine.remove(old)
	    info(machine, HostName='secret1.site.example', OSVersion='#1 built on secret2', OSRelease='5.14.0-secret3.x86_64',
	         LinuxCgroup='/user.slice/secret4', ProcessName='secret5', DMIBoardSerial='secret6',
	         DMIProductUUID='aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee', DMIChassisAssetTag='secret7', Other='secret8')
	for number, item in enumerate(list(root.iter('object'))):
	    kind = item.get('type')
	    if kind == 'PCIDev':
	        info(item, PCISlot='secret9', SerialNumber='secret10')
	    if kind == 'OSDev' and item.get('osdev_type') == '2':
	        info(item, Address='de:ad:be:ef:00:%02x' % (number % 256))
	    if kind == 'OSDev' and item.get('osdev_type') == '3':
	        info(item, NodeGUID='dead:beef:0000:%04x' % number, SysImageGUID='dead:beef:0000:%04x' % number,
	             Port1GID0='fe80:0000:0000:0000:dead:beef:0000:%04x' % number, Port1LID='0xdead')
	    if kind == 'OSDev':
	        info(item, NVIDIAUUID='GPU-aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeee%04x' % number, NVIDIASerial='secret11')
	pci = next(i for i in root.iter('object') if i.get('type') == 'PCIDev')
	for name, kind in (('bond-secret12', '2'), ('enxdeadbeef0001', '2'), ('secret13', '0'),
	                   ('ibproject', '2'), ('lo.ethz', '2'), ('zeus', '5')):
	    obj(pci, type='OSDev', gp_index=str(90000 + hash(name) % 10000), name=name, osdev_type=kind, subtype='secret14')
	doc.write(sys.argv[2], encoding='UTF-8', xml_declaration=True)
	PY
}

@test "the results, and a bundle in which nothing names the site" {
	allow_leaks
	secret_topology secret.xml
	mkdir -p results/secret15
	BERTH_TOPOLOGY=$DIR/secret.xml "$BERTH" plan --xml >raw.xml
	grep -q secret1 raw.xml
	grep -q de:ad:be:ef raw.xml
	ulimit -l 64 # too little for the NICs
	expect 76 env BERTH_TOPOLOGY="$DIR/secret.xml" SLURM_CLUSTER_NAME=secret16 "$BERTH" site-test --here --out results/secret15
	for line in 'PASS  launcher fork' 'PASS  checkpoint resumed' 'FAIL  check memlock' 'SKIP  requeue'; do
		[[ $output == *"$line"* ]]
	done
	printf 'FAIL\tlauncher ssh\t1\t%s\n' "rank of $(id -un) secret16 on $HOST (secret1.site.example, 10.1.2.3, fe80::1, de:ad:be:ef:00:01) \
cannot open /home/secret17/job.sh; node someone@site.example, 01234567-89ab-4def-8123-456789abcdef, 8Q2RM53 or 16529210; \
job of --account=physics at login1.ethz.ch, ibex07, gargantua-east" \
		>>results/secret15/results.tsv
	expect 0 --separate-stderr "$BERTH" site-test --out results/secret15 --bundle no.xml <<<n
	[ ! -e no.xml ]
	expect 0 --separate-stderr "$BERTH" site-test --out results/secret15 --bundle none.xml </dev/null
	[ ! -e none.xml ]
	[[ $stderr == *"nothing was written"* ]]
	expect 0 --separate-stderr "$BERTH" site-test --out results/secret15 --bundle site.xml <<<y
	diff - site.xml <<<"$output"
	local names='secret|dead|de:ad|beef|site\.example|someone|8Q2RM53|16529210|physics|ethz|ibex|ibproject|zeus|login1|gargantua'
	absent site.xml "$names"'|01234567|aaaaaaaa|[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+|fe80|/home|/tmp'
	absent site.xml "\\<($(id -un)|$HOST)\\>"
	grep -q 'value="FAIL launcher ssh, 1 s: rank of _ _ on _ (_, _, _, _) cannot open _; node _, _, _ or _; job of _ at _, _, _"' site.xml
	grep -q 'name="BerthPart" value="hwloc libhwloc' site.xml
	with_plan site.xml
}

@test "nodes of several kinds are several files, each with its plan; nodes that are alike are one" {
	allow_leaks
	"$BERTH" site-test --here --out results >/dev/null
	cp results/node-0.nics results/node-1.nics
	cp results/node-0.nics results/node-2.nics
	cp results/node-0.xml results/node-1.xml
	"$BERTH" plan --topology "$FIXTURES/topo/gb200.xml" --xml >results/node-2.xml
	expect 0 "$BERTH" site-test --out results --bundle site.xml <<<y
	[ "$(echo site*.xml)" = 'site.1.xml site.xml' ]
	with_plan site.xml
	with_plan site.1.xml
	grep -q BerthResult site.xml
	grep -q 'rank.* 4 GPUs' site.1.xml
	absent site.1.xml 'BerthResult|gb200'
}

@test "a bundle with an address in it is not written" {
	allow_leaks
	"$BERTH" site-test --here --out results >/dev/null
	sed -i 's/libhwloc.so[0-9.]*/libhwloc.so.10.1.2.3/' results/logs/version.log
	expect 70 "$BERTH" site-test --out results --bundle site.xml <<<y
	[[ $output == *"nothing was written, because this line may name a machine or a person"*"10.1.2.3"* ]]
	[ ! -e site.xml ]
}

@test "the plan is the same without the names, for each fixture" {
	for file in "$FIXTURES"/topo/*.xml; do
		"$BERTH" plan --topology "$file" --xml >raw.xml 2>/dev/null || continue
		awk -f "$SOURCE/jobscripts/site-test/names.awk" -f "$SOURCE/jobscripts/site-test/topology.awk" raw.xml >safe.xml
		if [[ $file == */path-classes.xml ]]; then # its NICs have names that no driver gives
			for kind in raw safe; do
				"$BERTH" plan --topology $kind.xml --json | sed -E 's/"(rdma|node)": "[^"]*"/"\1": ""/' >$kind
			done
			diff raw safe
			grep -q '"path": "PIX"' safe
			continue
		fi
		"$BERTH" plan --topology raw.xml | sed '1s/ on [^:]*:/ on node:/' >raw
		"$BERTH" plan --topology safe.xml | diff raw -
		echo >>compared
	done
	[ "$(wc -l <compared)" -gt 25 ]
}

@test "bundles of sites keep their plans" {
	for file in "$FIXTURES"/sites/*.xml; do
		with_plan "$file"
	done
}
