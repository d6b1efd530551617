/* SPDX-License-Identifier: BSD-3-Clause */
/* A child asks, because names, file systems and commands may hang. What it finds out comes through
 * a pipe and not as its exit code, which the code that reaps the ranks may take. */
#include "agent/ready.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"

#define ANSWER_MS 5000
#define COMMAND_MS 30000 /* Python may need that long to import */
#define PAUSE_MS 20
_Static_assert(ANSWER_MS == 5000 && COMMAND_MS == 30000, "ready.h says 5 s and 30 s");
#define READY_MARK "+" /* the child's whole text if it is ready; else a reason */

/* ---- in the child: text receives the reason, or stays empty ---- */

/* Return a connected socket, or -1 and the last reason. */
static int connect_to(const char *host, int port, char *text, size_t size)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *list = NULL;
	char service[16];
	int fd = -1, rc;

	snprintf(service, sizeof service, "%d", port);
	rc = getaddrinfo(host, service, &hints, &list);
	if (rc)
		snprintf(text, size, "%s", gai_strerror(rc));
	for (struct addrinfo *at = list; at && fd < 0; at = at->ai_next) {
		fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd >= 0 && !connect(fd, at->ai_addr, at->ai_addrlen)) {
			*text = '\0'; /* of an address before it: localhost is ::1, too */
			break;
		}
		snprintf(text, size, "%s", strerror(errno));
		if (fd >= 0)
			close(fd);
		fd = -1;
	}
	freeaddrinfo(list);
	return fd;
}

/* "HTTP/1.1 200 OK": any 2xx is an answer of a server that works. */
static void ask_http(const struct message_ask_ready *question, char *text, size_t size)
{
	int fd = connect_to(question->host, question->port, text, size), code = 0;
	bool ipv6 = strchr(question->host, ':');
	char line[256] = "";
	size_t filled = 0;
	ssize_t n;

	if (fd < 0)
		return;
	dprintf(fd, "GET %s HTTP/1.1\r\nHost: %s%s%s:%d\r\nConnection: close\r\n\r\n",
		question->path, ipv6 ? "[" : "", question->host, ipv6 ? "]" : "", question->port);
	while (filled < sizeof line - 1 && !strchr(line, '\n') &&
	       (n = read(fd, line + filled, sizeof line - 1 - filled)) > 0)
		filled += (size_t)n;
	line[strcspn(line, "\r\n")] = '\0';
	if (sscanf(line, "HTTP/%*s %d", &code) != 1)
		snprintf(text, size, "no answer of HTTP");
	else if (code < 200 || code > 299)
		snprintf(text, size, "%s", line);
}

/* Read once, and keep the end of what was read in out, a string of at most size bytes. Return false
 * if nothing more can come. */
static bool keep_end(int fd, char *out, size_t size)
{
	char chunk[4096];
	ssize_t n = read(fd, chunk, sizeof chunk);
	size_t used = strlen(out), more = n > 0 ? (size_t)n : 0, drop;

	if (more > size - 1)
		more = size - 1;
	drop = used + more > size - 1 ? used + more - (size - 1) : 0;
	memmove(out, out + drop, used - drop);
	memcpy(out + used - drop, chunk + (n > 0 ? (size_t)n - more : 0), more);
	out[used - drop + more] = '\0';
	return n > 0 || (n < 0 && errno == EAGAIN);
}

/* The last line of text, which it changes. */
static const char *last_line(char *text)
{
	char *end = text + strlen(text), *begin;

	while (end > text && end[-1] == '\n')
		*--end = '\0';
	begin = strrchr(text, '\n');
	return begin ? begin + 1 : text;
}

/* Wait for the command, however much it writes, and whoever it leaves behind with its output. */
static bool wait_for(pid_t pid, int fd, char *said, size_t size, int *status)
{
	struct pollfd output = {fd, POLLIN, 0};
	pid_t ended = 0;

	while (!ended) {
		if (poll(&output, 1, PAUSE_MS) > 0 && !keep_end(fd, said, size))
			break;
		ended = waitpid(pid, status, WNOHANG);
	}
	if (!ended)
		ended = waitpid(pid, status, 0);
	keep_end(fd, said, size);
	return ended == pid;
}

static void ask_command(const struct agent_job *job, const char *line, char *text, size_t size)
{
	struct env *env;
	char **envp, said[300] = "";
	int status = 0, ends[2];
	pid_t pid;

	if (agent_job_environment(job, &env, &(struct error){0}) || !(envp = env_to_envp(env))) {
		snprintf(text, size, "memory is out");
		return;
	}
	if (pipe2(ends, O_CLOEXEC)) {
		snprintf(text, size, "%s", strerror(errno));
		return;
	}
	pid = fork();
	if (!pid) {
		dup2(ends[1], STDOUT_FILENO);
		dup2(ends[1], STDERR_FILENO);
		if (!job->cwd[0] || !chdir(job->cwd[0]))
			execle("/bin/sh", "sh", "-c", line, (char *)NULL, envp);
		_exit(127);
	}
	close(ends[1]);
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	if (pid < 0 || !wait_for(pid, ends[0], said, sizeof said, &status))
		snprintf(text, size, "cannot run it: %s", strerror(errno));
	else if (WIFSIGNALED(status))
		snprintf(text, size, "killed by signal %d", WTERMSIG(status));
	else if (WEXITSTATUS(status))
		snprintf(text, size, "exit code %d%s%s", WEXITSTATUS(status), *said ? ": " : "",
			 last_line(said));
}

static _Noreturn void run_child(int fd, const struct agent_job *job,
				const struct message_ask_ready *question)
{
	char text[400] = "";
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), peer;
	sigset_t none;

	setpgid(0, 0);
	signal(SIGCHLD, SIG_DFL);
	signal(SIGPIPE, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	for (int i = 0; i < 3; i++)
		dup2(null, i);
	/* Whoever is connected to the agent must notice its end, and the agent this process's, even
	 * if its command leaves others behind. */
	if (fd != 3)
		dup3(fd, 3, O_CLOEXEC);
	file_close_range(4, INT_MAX);
	if (!strcmp(question->kind, "command")) {
		ask_command(job, question->path, text, sizeof text);
	} else if (!strcmp(question->kind, "file")) {
		if ((job->cwd[0] && chdir(job->cwd[0])) || access(question->path, F_OK))
			snprintf(text, sizeof text, "%s", strerror(errno));
	} else if (!strcmp(question->kind, "http")) {
		ask_http(question, text, sizeof text);
	} else {
		peer = connect_to(question->host, question->port, text, sizeof text);
		(void)peer; /* _exit closes it */
	}
	dprintf(3, "%s", *text ? text : READY_MARK);
	_exit(0);
}

/* ---- the agent's side ---- */

static void answer(struct agent_ready *ready, const char *reason)
{
	agent_ready_stop(ready);
	agent_uplink_report(ready->uplink, MESSAGE_READY,
			    &(struct message_ready){!strcmp(reason, READY_MARK), reason});
}

static void on_text(struct loop_source *source, uint32_t events)
{
	struct agent_ready *ready = LOOP_OWNER(source, struct agent_ready, source);
	ssize_t n =
		read(source->fd, ready->text + ready->size, sizeof ready->text - 1 - ready->size);

	(void)events;
	if (n > 0) {
		ready->size += (size_t)n;
		ready->text[ready->size] = '\0';
	} else if (n == 0 || errno != EINTR) {
		answer(ready, ready->size ? ready->text : "the check has ended without an answer");
	}
}

static void on_late(struct loop_timer *timer)
{
	struct agent_ready *ready = LOOP_OWNER(timer, struct agent_ready, late);

	answer(ready, ready->is_command ? "no answer within 30 s" : "no answer within 5 s");
}

void agent_ready_ask(struct agent_ready *ready, struct loop *loop, struct agent_uplink *uplink,
		     const struct agent_job *job, const struct message_ask_ready *question)
{
	int ends[2];

	if (ready->child)
		return;
	ready->loop = loop;
	ready->uplink = uplink;
	ready->late.due = on_late;
	ready->source = (struct loop_source){on_text, -1, 0};
	ready->is_command = !strcmp(question->kind, "command");
	ready->size = 0;
	ready->text[0] = '\0';
	if (pipe2(ends, O_CLOEXEC)) {
		answer(ready, strerror(errno));
		return;
	}
	ready->child = fork();
	if (!ready->child)
		run_child(ends[1], job, question);
	close(ends[1]);
	if (ready->child < 0 || loop_add(loop, &ready->source, ends[0], EPOLLIN, NULL)) {
		close(ends[0]);
		answer(ready, "cannot start a process");
		return;
	}
	loop_timer_after(loop, &ready->late, ready->is_command ? COMMAND_MS : ANSWER_MS);
}

void agent_ready_stop(struct agent_ready *ready)
{
	siginfo_t info;

	if (ready->child > 0) {
		/* Unless supervise has reaped it: then its number may be another process's. */
		if (!waitid(P_PID, (id_t)ready->child, &info, WEXITED | WNOHANG | WNOWAIT)) {
			kill(-ready->child, SIGKILL); /* and its command */
			kill(ready->child, SIGKILL);
		}
		/* Do not wait for a child that hangs in a file system; supervise reaps it later. */
		waitpid(ready->child, NULL, WNOHANG);
		loop_close(ready->loop, &ready->source);
		loop_timer_stop(&ready->late);
	}
	ready->child = 0;
}
