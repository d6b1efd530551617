/* SPDX-License-Identifier: BSD-3-Clause */
/* PBS's environments, node files and qstat output: captures (pbs/, from OpenPBS 23.06 on three
 * nodes) and variants of them. Torque's follow its documentation. */
#include "../../support/capture.h"
#include "../../support/files.h"
#include "../rows.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "alloc/alloc.h"
#include "alloc/pbs.h"
#include "alloc/query.h"
#include "base/file.h"
#include "base/json.h"

static char dir[] = "/tmp/berth-test-pbs-XXXXXX", node_file[64], gpu_file[64];

/* nodes: the lines of the node file, separated by blanks; NULL: the file is missing. changes:
 * separated by blanks, or NULL. */
static struct env *captured(const char *file, const char *nodes, const char *changes)
{
	struct env *env = capture_env(file);
	char list[2048];

	snprintf(list, sizeof list, "%s", nodes ? nodes : "");
	for (char *at = list; (at = strchr(at, ' '));)
		*at = '\n';
	unlink(node_file);
	if (nodes)
		write_text(node_file, list, 0644);
	if (env_get(env, "PBS_NODEFILE"))
		assert_int_equal(env_set(env, "PBS_NODEFILE", node_file, ENV_FROM_USER, NULL, NULL),
				 0);
	capture_change(env, changes, " ");
	return env;
}

static void good(void **state)
{
	static const struct {
		const char *file, *nodes, *changes;
		const char *expected;
		int this_node;
		const char *why; /* what the row tests */
	} rows[] = {
		{"two.env", "pbs-n1.bed.test pbs-n1.bed.test pbs-n2.bed.test pbs-n2.bed.test", NULL,
		 "pbs-n1.bed.test:2:-1 pbs-n2.bed.test:2:-1", 0, "repeats are slots; FQDNs stay"},
		{"one.env", "pbs-n1.bed.test", NULL, "pbs-n1.bed.test:1:-1", 0,
		 "one line; NCPUS=4 is ignored"},
		{"interactive.env", "pbs-n1.bed.test pbs-n2.bed.test", NULL,
		 "pbs-n1.bed.test:1:-1 pbs-n2.bed.test:1:-1", 0, "qsub -I"},
		{"two.env", "n1 n1 n2 n1 n3 n2", NULL, "n1:3:-1 n2:2:-1 n3:1:-1", 0,
		 "interleaved hosts: in the order of the first mention"},
		{"two.env", "n1\r n2\r  n2", NULL, "n1:1:-1 n2:2:-1", 0,
		 "CR, an empty line, no last newline"},
		{"spawned.env", "pbs-n2.bed.test pbs-n3.bed.test", NULL,
		 "pbs-n2.bed.test:1:-1 pbs-n3.bed.test:1:-1", 1, "a task on the second host"},
		{"two.env", "n1 n2", "CUDA_VISIBLE_DEVICES=GPU-8b1e2c11\\,GPU-77aa",
		 "n1:1:2 n2:1:-1", 0, "UUIDs of the cgroups hook, commas escaped"},
		{"two.env", "n1 n2", "CUDA_VISIBLE_DEVICES=MIG-1,MIG-2,MIG-3", "n1:1:3 n2:1:-1", 0,
		 "MIG"},
		{"two.env", "n1 n2", "CUDA_VISIBLE_DEVICES=", "n1:1:0 n2:1:-1", 0,
		 "empty: no GPU was granted here"},
		{"two.env", "n1 n2", "CUDA_VISIBLE_DEVICES=0,1", "n1:1:-1 n2:1:-1", 0,
		 "ordinals may be the user's own choice"},
		{"two.env", "n1 n2", "PBS_NODENUM", "n1:1:-1 n2:1:-1", -1,
		 "unknown which node this is"},
		{"two.env", "n1 n1 n2 n2",
		 "PBS_JOBCOOKIE PBS_JOBID=12.torque PBS_NUM_NODES=2 PBS_NUM_PPN=2 PBS_NP=4 "
		 "PBS_VNODENUM=0 PBS_WALLTIME=3600 PBS_GPUFILE=GPUS",
		 "n1:2:2 n2:2:1", 0, "Torque with a GPU file"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		char changes[512] = "", *gpus;
		struct alloc alloc = {0};
		struct error err = {0};

		snprintf(changes, sizeof changes, "%s", rows[i].changes ? rows[i].changes : "");
		gpus = strstr(changes, "=GPUS");
		write_text(gpu_file, "n1-gpu0\nn1-gpu1\nn2-gpu0\n", 0644);
		if (gpus)
			strcpy(gpus + 1, gpu_file);

		struct env *env = captured(rows[i].file, rows[i].nodes, changes);

		if (alloc_read(env, NULL, &alloc, &err))
			fail_msg("row %zu (%s): %s", i, rows[i].why, err.text);
		if (strcmp(capture_nodes(&alloc), rows[i].expected) ||
		    alloc.this_node != rows[i].this_node)
			fail_msg("row %zu (%s): %s at %d", i, rows[i].why, capture_nodes(&alloc),
				 alloc.this_node);
		assert_int_equal(alloc.source, ALLOC_FROM_PBS);
		alloc_free(&alloc);
		env_free(env);
	}
}

static void bad(void **state)
{
	static const struct {
		const char *file, *nodes, *changes;
		int code;
		const char *seen; /* part of the message */
	} rows[] = {
		{"two.env", .code = ERR_INPUT,
		 .seen = "PBS_NODEFILE: cannot open /tmp/berth-test-pbs-"},
		{"two.env", "", .code = ERR_DATA, .seen = "lists no node"},
		{"two.env", "#comment", .code = ERR_DATA, .seen = "lists no node"},
		{"two.env", "n1 n2,n3", .code = ERR_DATA, .seen = "line 2"},
		{"two.env", "n1 -oProxyCommand=x", .code = ERR_DATA, .seen = "line 2"},
		{"two.env", "n1", .changes = "PBS_NODEFILE", .code = ERR_DATA,
		 .seen = "pbsdsh or pbs_tmrsh"},
		{"two.env", "n1", .changes = "PBS_NODEFILE PBS_JOBCOOKIE", .code = ERR_DATA,
		 .seen = "or unset PBS_JOBID"},
		{"spawned-first.env", "n1", .code = ERR_DATA,
		 .seen = "start berth once for all nodes, in the job script"},
		{"two.env", "n1", .changes = "PBS_NODEFILE=/", .code = ERR_INPUT,
		 .seen = "PBS_NODEFILE"},
		{"two.env", "n1 n2", .changes = "PBS_NODENUM=2", .code = ERR_DATA,
		 .seen = "belong to different jobs"},
		{"two.env", "n1 n2", .changes = "PBS_NODENUM=x", .code = ERR_DATA,
		 .seen = "PBS_NODENUM"},
		{"two.env", "n1", .changes = "PBS_JOBID=64[].pbs-head", .code = ERR_DATA,
		 .seen = "which is a whole job array"},
		{"two.env", "n1", .changes = "PBS_JOBID=-Q", .code = ERR_DATA,
		 .seen = "expected a job such as"},
		{"two.env", "n1", .changes = "PBS_JOBID=1.a/b", .code = ERR_DATA,
		 .seen = "expected a job such as"},
		{"two.env", "n1", .changes = "PBS_JOBID=1[2.a", .code = ERR_DATA,
		 .seen = "expected a job such as"},
		{"two.env", "n1", .changes = "PBS_WALLTIME=soon", .code = ERR_DATA,
		 .seen = "'soon', expected a time"},
		{"two.env", "n1", .changes = "PBS_WALLTIME=1:99", .code = ERR_DATA,
		 .seen = "99 seconds"},
		{"two.env", "n1 n2", .changes = "PBS_GPUFILE=GPUS", .code = ERR_DATA,
		 .seen = "'n9', expected lines such as"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		char changes[512] = "", *gpus;
		struct alloc alloc = {0};
		struct error err = {0};

		snprintf(changes, sizeof changes, "%s", rows[i].changes ? rows[i].changes : "");
		gpus = strstr(changes, "=GPUS");
		write_text(gpu_file, "n1-gpu0\nn9-gpu0\n", 0644);
		if (gpus)
			strcpy(gpus + 1, gpu_file);

		struct env *env = captured(rows[i].file, rows[i].nodes, changes);
		int rc = alloc_read(env, NULL, &alloc, &err);

		if (rc != -rows[i].code || !strstr(err.text, rows[i].seen))
			fail_msg("row %zu: %d, '%s'; expected %d, '%s'", i, rc, err.text,
				 -rows[i].code, rows[i].seen);
		assert_null(alloc.nodes);
		env_free(env);
	}
}

/* A node file with a thousand repeats, and a file beyond the size limit. */
static void large(void **state)
{
	struct env *env = captured("two.env", "n1", NULL);
	FILE *stream = fopen(node_file, "w");
	struct alloc alloc = {0};
	struct error err = {0};

	for (int i = 0; i < 1000; i++)
		fputs("n1.x\nn2.x\n", stream);
	fclose(stream);
	assert_int_equal(alloc_read(env, NULL, &alloc, NULL), 0);
	assert_string_equal(capture_nodes(&alloc), "n1.x:1000:-1 n2.x:1000:-1");
	alloc_free(&alloc);
	assert_int_equal(truncate(node_file, 1 << 30), 0); /* 1 GiB, a sparse file */
	assert_int_equal(alloc_read(env, NULL, &alloc, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "PBS_NODEFILE"));
	env_free(env);
}

/* If both have set their variables, Slurm precedes PBS; the user's hosts precede both. */
static void whose(void **state)
{
	struct env *env = captured("two.env", "n1", "SLURM_JOB_ID=7 SLURM_JOB_NODELIST=m[1-2]");
	struct alloc_request request = {.hosts = "h1,h2,h3"};
	struct alloc alloc = {0};

	assert_int_equal(alloc_read(env, NULL, &alloc, NULL), 0);
	assert_int_equal(alloc.source, ALLOC_FROM_SLURM);
	assert_int_equal(alloc.node_count, 2);
	alloc_free(&alloc);
	assert_int_equal(alloc_read(env, &request, &alloc, NULL), 0);
	assert_int_equal(alloc.node_count, 3);
	alloc_free(&alloc);
	env_free(env);
}

static void array_task(void **state)
{
	struct env *env = captured("two.env", "n1", "PBS_JOBID=64[0].pbs-head PBS_ARRAY_INDEX=0");
	struct alloc alloc = {0};

	assert_int_equal(alloc_read(env, NULL, &alloc, NULL), 0);
	assert_string_equal(alloc.job_id, "64[0].pbs-head");
	assert_string_equal(alloc.array_task, "64[0].pbs-head");
	JSON_AUTO json = alloc_to_json(&alloc);
	assert_string_equal(json_string_value(json_object_get(json, "array_task")),
			    "64[0].pbs-head");
	alloc_free(&alloc);
	env_free(env);
}

static void durations(void **state)
{
	static const struct {
		const char *text;
		int64_t seconds; /* -1: refused */
	} rows[] = {
		{"0", 0},
		{"3600", 3600},
		{"01:00:00", 3600},
		{"10:05", 605},
		{"168:00:00", 604800},
		{"7:00:00:00", 604800},
		{"00:00:30.5", 30},
		{"", -1},
		{":", -1},
		{"1:", -1},
		{":1", -1},
		{"1:60", -1},
		{"1:60:00", -1},
		{"-1", -1},
		{"1 ", -1},
		{"1:1:1:1:1", -1},
		{"99999999999", -1},
		{"UNLIMITED", -1},
		{"1.x", -1},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		int64_t seconds = -1;
		struct error err = {0};

		if (pbs_duration("T", rows[i].text, &seconds, &err)) {
			assert_non_null(strstr(err.text, "T "));
			seconds = -1;
		}
		if (seconds != rows[i].seconds)
			fail_msg("'%s': %lld", rows[i].text, (long long)seconds);
	}
}

/* ---- qstat's answers ---- */

static struct alloc two_nodes(const char *a, const char *b)
{
	struct alloc alloc = {.source = ALLOC_FROM_PBS,
			      .job_id = strdup("2.pbs-head"),
			      .node_count = b ? 2 : 1,
			      .this_node = -1};

	alloc.nodes = calloc(2, sizeof *alloc.nodes);
	alloc.nodes[0] = (struct alloc_node){strdup(a), 1, -1};
	if (b)
		alloc.nodes[1] = (struct alloc_node){strdup(b), 1, -1};
	return alloc;
}

static int64_t local_time(int hour, int minute, int second)
{
	struct tm tm = {.tm_year = 126,
			.tm_mon = 10,
			.tm_mday = 21,
			.tm_hour = hour,
			.tm_min = minute,
			.tm_sec = second,
			.tm_isdst = -1};

	return (int64_t)mktime(&tm);
}

/* JSON and plain text give the same result. */
static void answers(void **state)
{
	static const char *const files[] = {"qstat-2.json", "qstat-2.txt"};

	for (size_t i = 0; i < ROWS(files); i++) {
		char *text = capture_text(files[i]);
		struct alloc alloc = two_nodes("pbs-n1.bed.test", "pbs-n2.bed.test");
		struct pbs_job_info answer = {0};

		assert_int_equal(pbs_job_info_read(text, "2.pbs-head", &answer, NULL), 0);
		assert_string_equal(answer.exec_vnode,
				    "(pbs-n1:ncpus=4:ngpus=2)+(pbs-n2:ncpus=4:ngpus=2)");
		pbs_job_info_apply(&answer, &alloc);
		assert_string_equal(capture_nodes(&alloc),
				    "pbs-n1.bed.test:1:2 pbs-n2.bed.test:1:2");
		assert_int_equal(alloc.end_time, local_time(2, 4, 31));
		assert_int_equal(alloc.restarts, 0);
		assert_int_equal(alloc.groups, 1);
		assert_string_equal(alloc.end_reason,
				    "qstat: started Sat Nov 21 02:02:31 2026, walltime 00:02:00");
		pbs_job_info_free(&answer);
		alloc_free(&alloc);
		assert_int_equal(pbs_job_info_read(text, "3.pbs-head", &answer, NULL), -ERR_DATA);
		free(text);
	}
}

static void odd_answers(void **state)
{
	static const struct {
		const char *text, *why;
		int64_t end; /* 0: unknown; below 1000: relative to now; else absolute */
	} rows[] = {
		{"Job Id: 2.pbs-head\n    Resource_List.walltime = 01:00:00\n",
		 "when the job started", 0},
		{"Job Id: 2.pbs-head\n    stime = Sat Nov 21 02:02:31 2026\n", "no walltime", 0},
		{"Job Id: 2.pbs-head\n    Resource_List.walltime = soon\n    stime = x\n",
		 "'soon', expected a time", 0},
		{"Job Id: 2.pbs-head\n    Resource_List.walltime = 60\n    stime = Sat Nov 41 "
		 "02:02:31 2026\n",
		 "when the job started", 0},
		{"Job Id: 2.pbs-head\n    Resource_List.walltime = 60\n    stime = Sat ovD 21 "
		 "02:02:31 2026\n",
		 "when the job started", 0},
		{"Job Id: 2.pbs-head\r\n    Resource_List.walltime = 60\r\n    Walltime.Remaining "
		 "= 50\r\n",
		 "50 s left", 50},
		{"Job Id: 2.pbs-head\n    Resource_List.wall\n\ttime = 60\n    exec_host = a/0\n",
		 "when the job", 0},
		{"{\"Jobs\":{\"2.pbs-head\":{\"Resource_List\":{\"walltime\":90},\"stime\":\"Sat "
		 "Nov 21 02:02:31 2026\"}}}",
		 "walltime 90", -1},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct alloc alloc = two_nodes("n1", NULL);
		struct pbs_job_info answer = {0};
		struct error err = {0};
		int64_t end = rows[i].end < 0 ? local_time(2, 4, 1) : rows[i].end;

		if (pbs_job_info_read(rows[i].text, "2.pbs-head", &answer, &err))
			fail_msg("row %zu: %s", i, err.text);
		pbs_job_info_apply(&answer, &alloc);
		if (!strstr(alloc.end_reason, rows[i].why))
			fail_msg("row %zu: %s", i, alloc.end_reason);
		if (end && end < 1000)
			assert_in_range(alloc.end_time - time(NULL), end - 5, end);
		else
			assert_int_equal(alloc.end_time, end);
		pbs_job_info_free(&answer);
		alloc_free(&alloc);
	}
}

static void gpus_of_chunks(void **state)
{
	static const struct {
		const char *host, *vnode, *expected;
	} rows[] = {
		{"n1/0*4+n2/0*4", "(n1:ncpus=4:ngpus=4)+(n2:ncpus=4:ngpus=2)", "n1.x:1:4 n2.x:1:2"},
		{"n1/0+n1/1+n2/0", "(n1:ngpus=1)+(n1:ngpus=2)+(n2:ncpus=1)", "n1.x:1:3 n2.x:1:0"},
		{"n1/0+n2/0", "(n1[0]:ngpus=2+n1[1]:ngpus=2:mem=1)+(n2:ngpus=1)",
		 "n1.x:1:4 n2.x:1:1"},
		{"n1/0+n2/0", "(n1:ncpus=1)+(n2:ncpus=1)", "n1.x:1:-1 n2.x:1:-1"},
		{"n1/0+n3/0", "(n1:ngpus=1)+(n3:ngpus=1)", "n1.x:1:-1 n2.x:1:-1"},
		{"n1/0", "(n1:ngpus=1)+(n2:ngpus=1)", "n1.x:1:-1 n2.x:1:-1"},
		{"n1/0+n2/0", "(n1:ngpus=1)+(n2:ngpus=1", "n1.x:1:-1 n2.x:1:-1"},
		{"n1/0+n2/0", "(n1:ngpus=x)+(n2:ngpus=1)", "n1.x:1:-1 n2.x:1:-1"},
		{"n1/0+n2/0", "(n1:ngpus=99999999999)+(n2:ngpus=1)", "n1.x:1:-1 n2.x:1:-1"},
		{"n1/0+n2/0", "", "n1.x:1:-1 n2.x:1:-1"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct alloc alloc = two_nodes("n1.x", "n2.x");
		struct pbs_job_info answer = {.exec_host = (char *)(uintptr_t)rows[i].host,
					      .exec_vnode = (char *)(uintptr_t)rows[i].vnode};

		pbs_job_info_apply(&answer, &alloc);
		if (strcmp(capture_nodes(&alloc), rows[i].expected))
			fail_msg("row %zu: %s", i, capture_nodes(&alloc));
		alloc_free(&alloc);
	}
}

static void groups_of_chunks(void **state)
{
	static const struct {
		const char *select, *host;
		int count, first, second; /* groups, and those of n1 and n2 */
	} rows[] = {
		{"1:ngpus=4+1:ncpus=8", "n1/0*4+n2/0*8", 2, 0, 1},
		{"2:ncpus=4", "n1/0*4+n2/0*4", 1, 0, 0},
		{"ncpus=4+ngpus=1:ncpus=2", "n1/0*4+n2/0*2", 2, 0, 1},
		{"2:ncpus=1+3", "n1/0+n1/1+n1/2+n2/0+n2/1", 2, 0, 1}, /* n1 has both */
		{"1+1:ncpus=0+1", "n1/0+n3/0+n2/0", 3, 0, 2},	      /* --nodes left out n3 */
		{"1:ncpus=4+1:host=n2", "n1/0*4+n2/0*8", 2, 0, 1},
		{"2:ncpus=4+1:ncpus=8", "n1/0*4+n2/0*8", 0, 0, 0}, /* too few hosts */
		{"1:ncpus=4", "n1/0*4+n2/0*8", 0, 0, 0},	   /* too many */
		{"1:ncpus=4+1:ncpus=8", "n1/0*4+n1/0*8", 0, 0, 0}, /* n2 is missing */
		{"99999999999999999999:ncpus=4", "n1/0*4+n2/0*8", 0, 0, 0},
		{"", "n1/0+n2/0", 0, 0, 0},
		{NULL, "n1/0+n2/0", 0, 0, 0},
		{"2:ncpus=1", NULL, 0, 0, 0},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct alloc alloc = two_nodes("n1.x", "n2.x");
		struct pbs_job_info answer = {.exec_host = (char *)(uintptr_t)rows[i].host,
					      .select = (char *)(uintptr_t)rows[i].select};

		pbs_job_info_apply(&answer, &alloc);
		if (alloc.groups != rows[i].count || alloc.nodes[0].group != rows[i].first ||
		    alloc.nodes[1].group != rows[i].second)
			fail_msg("row %zu: %d groups, %d, %d", i, alloc.groups,
				 alloc.nodes[0].group, alloc.nodes[1].group);
		alloc_free(&alloc);
	}
}

/* The value in "    Resource_List.ngpus = 8" of a request, or -1. */
static long attribute(const char *part, const char *name)
{
	const char *at = strstr(part, name);

	return at ? strtol(at + strlen(name) + 3, NULL, 10) : -1;
}

/* In all captured requests, the slots are mpiprocs (or one per chunk), and the GPUs are ngpus. */
static void requests(void **state)
{
	char *text = capture_text("requests.txt");
	int seen = 0;

	for (char *part = strstr(text, "## "), *next; part; part = next, seen++) {
		char nodes[1024], answer_text[2048];
		struct pbs_job_info answer = {0};
		struct alloc alloc = {0};
		long slots = 0, gpus = 0, procs, ngpus;

		next = strstr(part + 3, "## ");
		if (next)
			next[-1] = '\0';
		procs = attribute(part, "Resource_List.mpiprocs");
		ngpus = attribute(part, "Resource_List.ngpus");
		char *list = strstr(part, "nodefile=");

		assert_non_null(list);
		snprintf(nodes, sizeof nodes, "%.*s", (int)strcspn(list + 9, "\n"), list + 9);
		snprintf(answer_text, sizeof answer_text, "Job Id: 2.pbs-head\n%s",
			 strchr(list, '\n') + 1);
		struct env *env = captured("two.env", nodes, "PBS_JOBID=2.pbs-head");

		assert_int_equal(alloc_read(env, NULL, &alloc, NULL), 0);
		assert_int_equal(pbs_job_info_read(answer_text, "2.pbs-head", &answer, NULL), 0);
		pbs_job_info_apply(&answer, &alloc);
		for (size_t i = 0; i < alloc.node_count; i++) {
			slots += alloc.nodes[i].slots;
			gpus += alloc.nodes[i].gpus;
		}
		if (procs < 0)
			procs = attribute(part, "Resource_List.nodect");
		if (slots != procs || gpus != (ngpus < 0 ? -(long)alloc.node_count : ngpus))
			fail_msg("%.60s: %ld slots, %ld GPUs", part, slots, gpus);
		pbs_job_info_free(&answer);
		alloc_free(&alloc);
		env_free(env);
	}
	assert_int_equal(seen, 25);
	free(text);
}

/* qstat is in PATH, in PBS_EXEC or missing, fails, is slow, or does not support JSON. */
static void asked(void **state)
{
	static const struct {
		const char *script, *torque;
		bool in_exec;
		const char *why;
		bool known;
	} rows[] = {
		{"[ \"$3\" = json ] && cat " CAPTURES "/qstat-2.json", .why = "walltime 00:02:00",
		 .known = true},
		{"[ \"$3\" = json ] && cat " CAPTURES "/qstat-2.json", .in_exec = true,
		 .why = "walltime 00:02:00", .known = true},
		{"[ $2 != -F ] || { echo 'qstat: illegally formed job identifier' >&2; exit 1; }; "
		 "cat " CAPTURES "/qstat-2.txt",
		 .why = "walltime 00:02:00", .known = true},
		{"[ $2 = -F ] && echo '{ \"Jobs\": { oops' || cat " CAPTURES "/qstat-2.txt",
		 .why = "walltime 00:02:00", .known = true},
		{"echo 'Communication failure.' >&2; echo 'qstat: cannot connect to server pbs "
		 "(errno=15096)' >&2; exit 1",
		 .why = "qstat failed: Communication failure.", .known = false},
		{"exec sleep 7", .why = "qstat did not answer within 300 ms", .known = false},
		{.why = "found no qstat in PATH or in PBS_EXEC", .known = false},
		{.torque = "PBS_WALLTIME=3600",
		 .why = "PBS_WALLTIME (3600) after the time when the node file was written",
		 .known = true},
		{"exit 3", .torque = "PBS_WALLTIME=1:00:00",
		 .why = "qstat failed: ", .known = true},
	};
	char path[64], conf[64], exec[96], all[160];

	snprintf(conf, sizeof conf, "%s/pbs.conf", dir);
	snprintf(exec, sizeof exec, "%s/bin/qstat", dir);
	snprintf(path, sizeof path, "%s/qstat", dir);
	for (size_t i = 0; i < ROWS(rows); i++) {
		struct env *env =
			captured("two.env", "pbs-n1.bed.test pbs-n2.bed.test", rows[i].torque);
		struct alloc alloc = {0};
		struct alloc_query query;
		char line[600];

		unlink(path);
		unlink(exec);
		snprintf(line, sizeof line, "PBS_SERVER=pbs\nPBS_EXEC=%s\n", dir);
		write_text(conf, line, 0644);
		snprintf(line, sizeof line, "#!/bin/sh\n%s\n",
			 rows[i].script ? rows[i].script : "");
		if (rows[i].script)
			write_text(rows[i].in_exec ? exec : path, line, 0755);
		snprintf(all, sizeof all, "PATH=%s:/bin:/usr/bin PBS_CONF_FILE=%s", dir, conf);
		capture_change(env, all, " ");
		assert_int_equal(alloc_read(env, NULL, &alloc, NULL), 0);
		alloc_query_begin(&query, env, &alloc, 0,
				  strstr(rows[i].why, "300 ms") ? 300 : 20000);
		alloc_query_wait(&query, 20000, false);
		alloc_query_end(&query);
		if (!alloc.end_reason || !strstr(alloc.end_reason, rows[i].why))
			fail_msg("row %zu: %s", i, alloc.end_reason);
		assert_int_equal(alloc.end_time != 0, rows[i].known);
		alloc_free(&alloc);
		env_free(env);
	}
	unlink(path);
	unlink(conf);
}

static int begin(void **state)
{
	char path[96];

	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof path, "%s/bin", dir);
	snprintf(node_file, sizeof node_file, "%s/nodes", dir);
	snprintf(gpu_file, sizeof gpu_file, "%s/gpus", dir);
	return mkdir(path, 0755);
}

static int end(void **state)
{
	remove_tree(dir);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(good),
		cmocka_unit_test(bad),
		cmocka_unit_test(large),
		cmocka_unit_test(whose),
		cmocka_unit_test(array_task),
		cmocka_unit_test(durations),
		cmocka_unit_test(answers),
		cmocka_unit_test(odd_answers),
		cmocka_unit_test(requests),
		cmocka_unit_test(gpus_of_chunks),
		cmocka_unit_test(groups_of_chunks),
		cmocka_unit_test(asked),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
