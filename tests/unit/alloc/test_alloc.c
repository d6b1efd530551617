/* SPDX-License-Identifier: BSD-3-Clause */
#include "../../support/capture.h"
#include "../rows.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "alloc/alloc.h"
#include "base/json.h"

static char nodefile[] = "/tmp/berth-test-alloc-XXXXXX";

static int make_nodefile(void **state)
{
	static const char text[] = "n2 slots=2\r\n\nn1\n";
	int fd = mkstemp(nodefile);

	return fd < 0 || write(fd, text, sizeof text - 1) != sizeof text - 1 || close(fd) ? -1 : 0;
}

static int remove_nodefile(void **state)
{
	return unlink(nodefile);
}

static void by_hand(void **state)
{
	static const struct {
		struct alloc_request request;
		const char *nodes; /* NULL: must fail */
		int rc;
		const char *why;
	} rows[] = {
		{{"n1", NULL}, "n1:0:-1", 0, "one host, slots unknown"},
		{{"n[2-3],m1", NULL}, "n2:0:-1 n3:0:-1 m1:0:-1", 0, "a list keeps its order"},
		{{NULL, nodefile}, "n2:2:-1 n1:0:-1", 0, "a host file"},
		{{"n1", nodefile}, NULL, -ERR_USAGE, "both options"},
		{{"n1,n2,n1", NULL}, NULL, -ERR_DATA, "a list with a repeated host"},
		{{"", NULL}, NULL, -ERR_DATA, "a list without a host"},
		{{"n[1", NULL}, NULL, -ERR_DATA, "an incomplete list"},
		{{"user@n1%eth0", NULL}, "user@n1%eth0:0:-1", 0, "a user and an interface"},
		{{"n1;id", NULL}, NULL, -ERR_DATA, "a shell's separator"},
		{{"$(id)", NULL}, NULL, -ERR_DATA, "a shell's substitution"},
		{{"n1+", NULL}, NULL, -ERR_DATA, "a plus"},
		{{"-oProxyCommand=id", NULL}, NULL, -ERR_DATA, "an option"},
		{{"n\303\244", NULL}, NULL, -ERR_DATA, "not ASCII"},
		{{NULL, "/nonexistent/nodes"}, NULL, -ERR_INPUT, "a missing file"},
		{{NULL, "/dev/null"}, NULL, -ERR_DATA, "a file without a host"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct alloc alloc = {0};
		struct error err = {0};
		struct env *env = env_new();
		int rc = alloc_read(env, &rows[i].request, &alloc, &err);

		if (rc != rows[i].rc || (rc && (alloc.nodes || !strstr(err.text, "allocation"))))
			fail_msg("%s: %d, '%s'", rows[i].why, rc, err.text);
		if (!rc) {
			assert_string_equal(capture_nodes(&alloc), rows[i].nodes);
			assert_int_equal(alloc.source, ALLOC_FROM_HOSTS);
			assert_int_equal(strncmp(alloc.job_id, "hosts-", 6), 0);
			assert_true(*alloc.why && alloc.end_time == 0);
		}
		alloc_free(&alloc);
		env_free(env);
	}
}

/* The slots of this machine are the CPUs that this process may use, not all CPUs. */
static void local(void **state)
{
	cpu_set_t all, one;
	struct alloc alloc = {0};
	char host[256] = "", expected[400];

	gethostname(host, sizeof host - 1);
	assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
	assert_int_equal(alloc_read(NULL, NULL, &alloc, NULL), 0);
	assert_int_equal(alloc.node_count, 1);
	assert_int_equal(alloc.source, ALLOC_FROM_LOCAL);
	assert_string_equal(alloc.nodes[0].name, host);
	assert_int_equal(alloc.nodes[0].slots, CPU_COUNT(&all));
	assert_int_equal(alloc.nodes[0].gpus, -1);
	assert_int_equal(alloc.end_time, 0);
	long long now = time(NULL), then;
	char tail;

	snprintf(expected, sizeof expected, "local-%s-%ld-", host, (long)getpid());
	assert_int_equal(strncmp(alloc.job_id, expected, strlen(expected)), 0);
	assert_int_equal(sscanf(alloc.job_id + strlen(expected), "%lld%c", &then, &tail), 1);
	assert_true(then <= now && then > now - 3600);
	alloc_free(&alloc);
	alloc_free(&alloc);
	alloc_free(NULL);

	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
		if (CPU_ISSET(cpu, &all))
			CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
	assert_int_equal(alloc_read(NULL, NULL, &alloc, NULL), 0);
	assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
	assert_int_equal(alloc.nodes[0].slots, 1);
	alloc_free(&alloc);
}

static void to_json(void **state)
{
	char names[][4] = {"n1", "n\xff"}, reason[] = "slurm", job[] = "12_3",
	     why[] = "SLURM_JOB_ID is set", rendezvous[] = "n1:4242";
	struct alloc_node nodes[] = {{names[0], 4, 2}, {names[1], 0, -1}};
	struct alloc alloc = {.source = ALLOC_FROM_SLURM,
			      .job_id = job,
			      .node_count = 2,
			      .nodes = nodes,
			      .this_node = 1,
			      .end_time = 4102444800,
			      .end_reason = reason,
			      .restarts = 3,
			      .array_task = job,
			      .rendezvous = rendezvous,
			      .why = why};
	static const char known[] =
		"{\"source\":\"slurm\",\"job_id\":\"12_3\",\"nodes\":[{\"name\":\"n1\",\"slots\":4,"
		"\"gpus\":2},{\"name\":\"n\xef\xbf\xbd\",\"slots\":null,\"gpus\":null}],"
		"\"this_node\":1,\"end_time\":4102444800,\"end_why\":\"slurm\",\"restarts\":3,"
		"\"array_task\":\"12_3\",\"rdzv_endpoint\":\"n1:4242\",\"why\":\"SLURM_JOB_ID is "
		"set\"}";
	/* Unknown values are null, not special numbers. */
	static const char unknown[] =
		"{\"source\":\"slurm\",\"job_id\":\"12_3\",\"nodes\":[{\"name\":\"n1\",\"slots\":4,"
		"\"gpus\":0}],\"this_node\":null,\"end_time\":null,\"end_why\":null,\"restarts\":0,"
		"\"array_task\":null,\"rdzv_endpoint\":null,\"why\":\"SLURM_JOB_ID is set\"}";
	JSON_AUTO json = alloc_to_json(&alloc);
	char *text = json_dumps(json, JSON_COMPACT);

	assert_string_equal(text, known);
	free(text);
	nodes[0].gpus = 0;
	alloc = (struct alloc){.source = ALLOC_FROM_SLURM,
			       .job_id = job,
			       .node_count = 1,
			       .nodes = nodes,
			       .this_node = -1,
			       .why = why};
	JSON_AUTO less = alloc_to_json(&alloc);

	text = json_dumps(less, JSON_COMPACT);
	assert_string_equal(text, unknown);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_hand),
		cmocka_unit_test(local),
		cmocka_unit_test(to_json),
	};

	return cmocka_run_group_tests(tests, make_nodefile, remove_nodefile);
}
