/* SPDX-License-Identifier: BSD-3-Clause */
/* Which nodes a role gets, and what follows from how far each role has come. */
#include "../rows.h"

#include "roles/decide.h"
#include "roles/roles.h"

/* "s:READY t:PREPARED<s": a name that begins with s is a service; "<x" after x, "!" failed, "75"
 * stopped, "*" has --ready, "+" may be restarted, "." finished, "@" failed first, "~" takes what is
 * left, "-" silent, "2" two of all whose names begin so are needed. Answer: "WAIT START";
 * *first_failed is the name of the role that failed first, or 0. Return the name of one that looks
 * like a server, or 0. */
static char decide(const char *text, bool interrupted, char *first_failed, char *out)
{
	static const char *const states[] = {"OPEN",  "KNOWN",	"PREPARED", "STARTING",
					     "READY", "ENDING", "OVER"};
	static const char *const names[] = {"WAIT", "PROBE",   "PLAN",	"START",  "END",
					    "STOP", "RESTART", "FORGO", "DISMISS"};
	struct role_rule rules[8];
	struct role_view roles[8];
	enum role_action actions[8];
	char first[8], word[40];
	size_t count = 0;
	long failed = -1;
	int used;

	*out = 0;
	for (; sscanf(text, "%39s%n", word, &used) == 1; text += used) {
		char *colon = strchr(word, ':'), *less = strchr(word, '<');
		struct role_rule *rule = &rules[count];
		struct role_view *role = &roles[count];

		assert_non_null(colon);
		first[count] = word[0];
		*role = (struct role_view){.rule = rule};
		*rule = (struct role_rule){.service = word[0] == 's', .group = (int)count};
		rule->after_default = !rule->service && !less;
		for (; less && less[1] >= 'a'; less++)
			for (size_t i = count; i-- > 0;)
				if (first[i] == less[1]) {
					rule->after |= UINT64_C(1) << rules[i].group;
					break;
				}
		role->failed = strchr(word, '!') != NULL;
		role->stopped = strstr(word, "75") != NULL;
		rule->offers = strchr(word, '*') != NULL;
		role->restarts = strchr(word, '+') != NULL;
		role->finished = strchr(word, '.') != NULL;
		role->takes_rest = strchr(word, '~') != NULL;
		rule->need = strchr(word, '2') ? 2 : 0;
		for (size_t i = 0; rule->need && i < count; i++)
			if (first[i] == word[0] && rules[i].need) {
				rule->group = (int)i;
				break;
			}
		role->silent_ms = strchr(word, '-') ? 60000 : 59999;
		if (strchr(word, '@'))
			failed = (long)count;
		for (size_t i = 0; i < ROWS(states); i++)
			if (!strncmp(colon + 1, states[i], strlen(states[i])))
				role->state = (enum role_state)i;
		count++;
	}
	roles_order(rules, count);
	roles_decide(roles, count, interrupted, &failed, actions);
	*first_failed = failed < 0 ? '\0' : first[failed];
	for (size_t i = 0; i < count; i++)
		out += sprintf(out, "%s%s", i ? " " : "", names[actions[i]]);
	failed = roles_find_server(roles, count);
	return failed < 0 ? '\0' : first[failed];
}

static void test_server_without_service(void **state)
{
	static const struct {
		const char *roles;
		char server;
	} rows[] = {
		{"v:READY- t:OVER.", 'v'},
		{"v:READY- t:READY.", 'v'},
		{"s:READY v:READY- w:READY- t:OVER.", 'v'},
		{"v:READY t:OVER.", 0},		 /* it works */
		{"v:READY- w:READY t:OVER.", 0}, /* another one does */
		{"v:READY- t:READY", 0},
		{"v:READY- t:OVER!", 0},
		{"v:READY- t:OVER. u:PREPARED<t", 0},
		{"t:OVER. v:READY-<t", 0}, /* a step of the work */
		{"s:READY- t:OVER.", 0},
	};
	char actions[100], first;

	for (size_t i = 0; i < ROWS(rows); i++)
		if (decide(rows[i].roles, false, &first, actions) != rows[i].server)
			fail_msg("%s", rows[i].roles);
}

static void test_decide(void **state)
{
	static const struct {
		const char *roles, *actions;
		bool interrupted;
		char first; /* the name of the role whose failure is the job's; 0: none */
	} rows[] = {
		/* No one plans before all know each other's addresses, and each in its turn. */
		{"s:KNOWN t:OPEN", "WAIT WAIT"},
		{"s:KNOWN t:KNOWN u:KNOWN", "PLAN PROBE PROBE"},
		{"s:PREPARED t:KNOWN u:KNOWN", "WAIT PLAN PROBE"},
		/* The ranks of each role learn about all others, so all are planned first. */
		{"s:PREPARED t:PREPARED u:KNOWN", "WAIT WAIT PLAN"},
		{"s:PREPARED t:PREPARED", "START WAIT"},
		{"s:STARTING t:PREPARED", "WAIT WAIT"},
		{"s:READY t:PREPARED", "WAIT START"},
		{"t:PREPARED u:PREPARED", "START START"},
		/* A role that is not a service has done its part when it is over. */
		{"t:READY u:PREPARED<t", "WAIT WAIT"},
		{"t:OVER u:PREPARED<t", "WAIT START"},
		{"t:STARTING* u:PREPARED<t", "WAIT WAIT"},
		{"t:READY* u:PREPARED<t", "WAIT START"},
		{"t:OVER* u:PREPARED<t", "WAIT START"},
		{"s:READY t:READY u:PREPARED<t", "WAIT WAIT WAIT"},
		{"s:READY sb:PREPARED<s t:PREPARED", "WAIT START WAIT"},
		/* What prepares for a service does not wait for it, but for other services. */
		{"t:PREPARED s:PREPARED<t u:PREPARED", "START WAIT WAIT"},
		{"t:OVER s:PREPARED<t u:PREPARED", "WAIT START WAIT"},
		{"t:OVER s:READY<t u:PREPARED", "WAIT WAIT START"},
		{"t:PREPARED u:PREPARED s:PREPARED<t s:PREPARED<u", "START START WAIT WAIT"},
		{"s:STARTING t:PREPARED s:PREPARED<t", "WAIT WAIT WAIT"},
		{"s:READY t:PREPARED s:PREPARED<t", "WAIT START WAIT"},
		/* What takes the rest plans last. */
		{"t:KNOWN~ u:KNOWN", "PROBE PLAN"},
		{"t:KNOWN~ u:PREPARED", "PLAN WAIT"},
		/* The end. */
		{"s:READY t:OVER", "DISMISS WAIT"},
		{"s:READY t:READY.", "DISMISS WAIT"},
		/* In the reverse order of the start. */
		{"s:READY sb:READY<s t:OVER", "WAIT DISMISS WAIT"},
		{"s:READY sb:ENDING<s t:OVER", "WAIT WAIT WAIT"},
		{"s:READY sb:OVER<s t:OVER", "DISMISS WAIT WAIT"},
		/* The server ended because its client had, */
		{"s:READY! t:READY.", "DISMISS WAIT"},
		{"s:OVER! t:READY.", "WAIT WAIT"},
		/* or while the client still ran. */
		{"s:READY! t:READY", "WAIT WAIT", .first = 's'},
		{"s:READY!@ t:READY.", "WAIT WAIT", .first = 's'},
		{"s:OVER!@ t:READY. u:READY", "WAIT END END", .first = 's'},
		{"s:READY t:OVER u:READY", "WAIT WAIT WAIT"},
		{"s:READY t:ENDING! u:READY", "END WAIT END", .first = 't'},
		{"s:OVER! t:READY", "WAIT END", .first = 's'},
		{"s:READY t:READY! u:READY", "WAIT WAIT WAIT",
		 .first = 't'}, /* a stronger cause may come */
		{"s:READY t:PREPARED u:OVER!", "END END WAIT", .first = 'u'},
		{"s:READY t:OVER75 u:READY", "WAIT WAIT STOP"},
		{"s:READY t:OVER75 u:OVER", "DISMISS WAIT WAIT"},
		{"s:ENDING!+ t:READY", "WAIT WAIT"},
		{"s:OVER!+ t:READY", "RESTART WAIT"},
		{"s:OVER!+ t:PREPARED", "RESTART WAIT"},
		{"s:OVER!+ t:OVER", "WAIT WAIT"},
		{"s:OVER!+ t:READY u:OVER!", "WAIT END WAIT", .first = 'u'},
		{"s:OVER!+ t:OVER!", "WAIT WAIT", true},
		/* Two of three replicas are enough. */
		{"s2:READY s2:STARTING s2:STARTING t:PREPARED", "WAIT WAIT WAIT WAIT"},
		{"s2:READY s2:STARTING s2:READY t:PREPARED", "WAIT WAIT WAIT START"},
		{"s2:READY s2:OVER! s2:READY t:READY", "WAIT FORGO WAIT WAIT"},
		{"s2:READY s2:READY! s2:READY t:READY", "WAIT WAIT WAIT WAIT"},
		{"s2:OVER! s2:OVER! s2:READY t:READY", "WAIT WAIT END END", .first = 's'},
		{"s2:READY s2:OVER!+ s2:READY t:READY", "WAIT RESTART WAIT WAIT"},
		{"s2:READY s2:OVER! s2:READY t:OVER", "DISMISS WAIT DISMISS WAIT"},
		{"s2:READY s2:STARTING s2:STARTING sb:PREPARED<s t:PREPARED",
		 "WAIT WAIT WAIT WAIT WAIT"},
		/* After two. */
		{"a:OVER b:READY s:PREPARED<ab t:PREPARED", "WAIT WAIT WAIT WAIT"},
		{"a:OVER b:OVER s:PREPARED<ab t:PREPARED", "WAIT WAIT START WAIT"},
		{"s2:READY s2:READY s2:STARTING sb:PREPARED<s t:PREPARED",
		 "WAIT WAIT WAIT START WAIT"},
		/* All have the signal, and the same time to save. */
		{"s:OVER! t:READY", "WAIT WAIT", true},
		{"s:READY t:READY u:OVER75", "WAIT WAIT WAIT", true},
		{"s:READY t:OVER75", "DISMISS WAIT", true},
		{"s:READY t:OVER!", "DISMISS WAIT", true},
	};
	char actions[100], first;

	for (size_t i = 0; i < ROWS(rows); i++) {
		decide(rows[i].roles, rows[i].interrupted, &first, actions);
		if (strcmp(actions, rows[i].actions) != 0)
			fail_msg("%s: %s, expected %s", rows[i].roles, actions, rows[i].actions);
		if (first != rows[i].first)
			fail_msg("%s: '%c' failed first", rows[i].roles, first ? first : '-');
	}
}

/* "a 2n 4r 1k 0g 1h S >b": nodes, ranks, ranks per node, GPUs per rank, --het-group, a service,
 * --after b. */
static size_t read_roles(const char *text, struct role *roles, char *words)
{
	static const char *argvs[8][2];
	size_t count = 0;

	strcpy(words, text);
	for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
		char kind = word[strlen(word) - 1];
		struct role *role = &roles[count ? count - 1 : 0];

		if (word[0] == '>')
			role->after = word + 1;
		else if (strchr(word, '{'))
			argvs[count - 1][0] = word;
		else if (kind == 'p')
			role->ports = atoi(word);
		else if (word[0] == 'S')
			role->service = true;
		else if (word[0] < '0' || word[0] > '9') {
			argvs[count][0] = "true";
			roles[count] = (struct role){.name = word,
						     .base = word,
						     .argv = argvs[count],
						     .gpus_per_rank = -1,
						     .group = -1};
			count++;
		} else if (kind == 'n')
			role->nodes = atoi(word);
		else if (kind == 'r')
			role->ranks = atoi(word);
		else if (kind == 'h')
			role->group = atoi(word);
		else if (kind == 'k')
			role->ranks_per_node = atoi(word);
		else
			role->gpus_per_rank = atoi(word);
	}
	return count;
}

static void test_assign(void **state)
{
	/* Nodes with so many slots, or GPUs with "g"; "/" between groups. The answer: the nodes of
	 * each role. */
	static const struct {
		const char *nodes, *roles, *answer;
	} rows[] = {
		{"4", "a b", "0+ 0+"},
		{"4", "a 1n 2r b 2r c 0g", "0+ 0+ 0+"},
		{"4", "a 2n", "asks for 2 nodes, and the job has 1"},
		{"4 4 4", "a 1n b", "0 12"},
		{"4 4 4", "a b 1n", "01 2"}, /* in the order of the command line */
		{"4 4 4", "a 8r b", "01 2"},
		{"4 4 4", "a 3r 1k b", "need 4 nodes"},
		{"8 2 2", "a 1n b 4r", "0 12"}, /* -n counts the role's own nodes */
		{"2 2 8", "a b 8r", "01 2"},
		{"8 4 2 2", "a 1n b c 4r", "0 1 23"},
		{"8 2 2", "a 1n b 9r", "0 12"},
		{"8 2 2", "a 1n b 1n c 1n d 1r", "need 4 nodes"},
		{"4 4 4", "a 9r b", "need 4 nodes, and the job has 3"},
		{"4 4 4", "a 1n b c", "roles b and c have neither"},
		{"4 4 4", "a 2n b 2n", "need 4 nodes"},
		{"4 4 4", "d 0g a 1n b", "0+ 0+ 12"}, /* shares the first node */
		{"4 4 4", "d 0g 2n a 1n b", "01+ 0+ 12+"},
		{"8g 8g", "a 8r b 8r", "0 1"},
		{"8g 8g", "a 4r 2g b 1r", "0 1"},
		{"8g 8g", "a 8r 2g", "01"},
		{"0 0", "a 1r b 1r", "0 1"}, /* unknown slots count as one */
		{"4 4 / 4 4", "a", "0123"},
		{"4 4 / 4 4", "a 1h b 0h", "23 01"},
		{"4 4 / 4 4", "a 1h 1n b 1h c 0h", "2 3 01"},
		{"4 4 / 4 4", "a 1h d 0g", "23 0"},
		{"4 / 4 4", "a 0h d 0g b 1h", "0+ 0+ 12"},
		{"4 / 8g 8g", "a 0h b 1h 16r", "0 12"}, /* slots of its own group */
		{"4 / 4", "a 0h b", "role a has --het-group or --chunk, so role b needs it, too"},
		{"4 / 4", "a 2h", "asks for group 2, from 0, and the job has 2 groups"},
		{"4 4", "a 0h", "the job has 0 groups"},
		{"4 /", "a 0h b 1h",
		 "role b asks for group 1 (--chunk), and its chunks lie on nodes of other"},
		{"4 / 4 4", "a 1h 3n", "asks for 3 nodes, and the group has 2"},
		{"4 / 4 4", "a 1h 2n b 1h", "need 3 nodes, and the group has 2"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		char text[100], words[100], why[] = "a test", answer[200] = "", *at = answer;
		struct alloc_node nodes[8];
		struct alloc alloc = {.nodes = nodes, .why = why};
		bool uses[64], shared[8];
		struct role roles[8];
		struct error err = {0};
		size_t count;

		strcpy(text, rows[i].nodes);
		for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
			bool gpus = strchr(word, 'g') != NULL;

			if (*word == '/')
				alloc.groups = alloc.groups ? alloc.groups + 1 : 2;
			else
				nodes[alloc.node_count++] = (struct alloc_node){
					.slots = gpus ? 1 : atoi(word),
					.gpus = gpus ? atoi(word) : -1,
					.group = alloc.groups ? alloc.groups - 1 : 0};
		}
		count = read_roles(rows[i].roles, roles, words);
		if (roles_assign(roles, count, &alloc, uses, shared, &err)) {
			assert_int_equal(err.code, ERR_USAGE);
			if (!strstr(err.text, rows[i].answer))
				fail_msg("row %zu: %s", i, err.text);
			continue;
		}
		for (size_t k = 0; k < count; k++) {
			at += sprintf(at, "%s", k ? " " : "");
			for (size_t n = 0; n < alloc.node_count; n++)
				if (uses[k * alloc.node_count + n])
					at += sprintf(at, "%zu", n);
			at += sprintf(at, "%s", shared[k] ? "+" : "");
		}
		if (strcmp(answer, rows[i].answer) != 0)
			fail_msg("row %zu (%s on %s): %s", i, rows[i].roles, rows[i].nodes, answer);
	}
}

static void test_ready(void **state)
{
	static const struct {
		const char *text, *kind, *host, *path, *error;
		int port;
	} rows[] = {
		{"tcp:80", "tcp", "", .port = 80},
		{"tcp:n1:80", "tcp", "n1", .port = 80},
		{"tcp:[::1]:80", "tcp", "::1", .port = 80},
		{"http::8000/health", "http", "", "/health", .port = 8000},
		{"http:n1:8000", "http", "n1", "/", .port = 8000},
		{"http://[fd00::1]:8000/a:b/c", "http", "fd00::1", "/a:b/c", .port = 8000},
		{"file:a:b", "file", "", "a:b"},
		{"command:test -e x:y", "command", "", "test -e x:y"},
		{"", .error = "unknown kind"},
		{"tcp", "tcp", ""},
		{"http", "http", "", "/"},
		{"http:/health", "http", "", "/health"},
		{"http://", .error = "without a valid port"},
		{"file", .error = "unknown kind"},
		{"udp:80", .error = "unknown kind"},
		{"tcp:", .error = "nothing follows"},
		{"tcp:n1", .error = "without a port"},
		{"http:n1/health", .error = "without a port"},
		{"http::/health", .error = "without a valid port"},
		{"http::70000/", .error = "without a valid port"},
		{"tcp:-1", .error = "without a port"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct job_ready ready = {0};
		struct error err = {0};
		int rc = roles_read_ready(rows[i].text, &ready, &err);

		assert_int_equal(rc, rows[i].error ? -ERR_USAGE : 0);
		if (rows[i].error && !strstr(err.text, rows[i].error))
			fail_msg("%s: %s", rows[i].text, err.text);
		if (!rows[i].error) {
			assert_string_equal(ready.kind, rows[i].kind);
			assert_string_equal(ready.host, rows[i].host);
			assert_int_equal(ready.port, rows[i].port);
		}
		if (rows[i].path)
			assert_string_equal(ready.path, rows[i].path);
		free(ready.place);
	}
}

static void test_check(void **state)
{
	static const struct {
		const char *roles, *error; /* NULL: none */
	} rows[] = {
		{"a b >a", NULL},
		{"a-1 b_2 S c >b_2", NULL},
		{"a a", "two roles are called a"},
		{"a-b a_b", "roles a-b and a_b have the same name in variables"},
		{"ab aB", "the same name in variables"},
		{"ab abc", NULL},
		{"-x", "expected a name"},
		{"a.b", "expected a name"},
		{"none", "expected a name"},
		{"a >none", NULL},
		{"a123456789012345678901234567890123", "at most 32"},
		{"a >b", "there is no such role"},
		{"a >a", "would wait for itself"},
		{"a >c b >a c >b", "would wait for itself"},
		{"d >a a >c c >a", "would wait for itself"},
		{"a >b,c b c >a", "role a would wait for itself"},
		{"a >b,c b c >b", NULL},
		{"a >b, b", NULL},
		{"a >b,d b", "--after d: there is no such role"},
		{"a S b S", "all roles are services"},
		{"a b {a.port}{b}{{c.port}}{{a-b.c.port}", NULL},
		{"a {b.port}",
		 "{b.port}: there is no role b; for this text itself, write {{b.port}}"},
		{"a x={b.ports} b", "{b.ports}: role b has no --ports"},
		{"a x={b.ports} b 2p", NULL},
		{"a {ports}", "{ports}: role a has no --ports"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct error err = {0};
		struct role roles[8];
		char words[100];
		size_t count = read_roles(rows[i].roles, roles, words);
		int rc = roles_check(roles, count, &err);

		assert_int_equal(rc, rows[i].error ? -ERR_USAGE : 0);
		if (rows[i].error && !strstr(err.text, rows[i].error))
			fail_msg("row %zu: %s", i, err.text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_decide), cmocka_unit_test(test_server_without_service),
		cmocka_unit_test(test_assign), cmocka_unit_test(test_check),
		cmocka_unit_test(test_ready),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
