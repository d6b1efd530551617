/* SPDX-License-Identifier: BSD-3-Clause */
/* A child of a process with threads may only make async-signal-safe calls until exec. So
 * child_spec_make does whatever allocates, before the fork. */
#include "process/child.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "process/executable.h"

#define DEFAULT_PATH "/usr/local/bin:/usr/bin:/bin"

static const char *path_of(char *const *envp)
{
	for (; envp && *envp; envp++)
		if (!strncmp(*envp, "PATH=", 5))
			return *envp + 5;
	return DEFAULT_PATH;
}

static char **path_candidates(const char *program, const char *path)
{
	struct words words = {0};
	size_t length;

	if (strchr(program, '/')) {
		words_add(&words, "%s", program);
		return words_end(&words);
	}
	do {
		length = strcspn(path, ":");
		/* An empty part of PATH is the current directory, as for execvp. */
		words_add(&words, "%.*s/%s", length ? (int)length : 1, length ? path : ".",
			  program);
		path += length;
	} while (*path++);
	return words_end(&words);
}

int child_spec_make(const char *const *argv, char *const *envp, const char *cwd,
		    struct child_spec *out, struct error *err)
{
	struct child_spec spec = {.argv = argv, .envp = envp, .cwd = cwd};
	size_t count = 0;

	if (!argv || !argv[0] || !argv[0][0])
		return error_set(err, ERR_USAGE,
				 "no program to start; name one on the command line");
	while (argv[count])
		count++;
	spec.candidates = path_candidates(argv[0], path_of(envp));
	spec.shell_argv = calloc(count + 2, sizeof *spec.shell_argv);
	if (!spec.candidates || !spec.shell_argv) {
		child_spec_free(&spec);
		return error_memory(err, "starting a rank");
	}
	spec.shell_argv[0] = (char *)"/bin/sh";
	for (size_t i = 1; i < count; i++)
		spec.shell_argv[i + 1] = (char *)argv[i];
	*out = spec;
	return 0;
}

void child_spec_free(struct child_spec *spec)
{
	free(spec->candidates);
	free(spec->shell_argv);
	spec->candidates = NULL;
	spec->shell_argv = NULL;
}

static _Noreturn void report_and_exit(const struct child_spec *spec, int stage)
{
	struct child_report report = {.stage = stage, .error = errno};
	/* A report without a reader is not needed. */
	ssize_t ignored = write(spec->report_fd, &report, sizeof report);

	(void)ignored;
	_exit(CHILD_NOT_FOUND);
}

static void set_stdio(const struct child_spec *spec)
{
	/* dup2 onto itself would leave close-on-exec as it is. */
	if (spec->stdin_fd == 0 ? fcntl(0, F_SETFD, 0) < 0 : dup2(spec->stdin_fd, 0) < 0)
		report_and_exit(spec, CHILD_STAGE_STDIO);
	if (dup2(spec->stdout_fd, 1) < 0 || dup2(spec->stderr_fd, 2) < 0)
		report_and_exit(spec, CHILD_STAGE_STDIO);
	/* exec closes the report. */
	file_close_range(3, spec->report_fd - 1);
	file_close_range(spec->report_fd + 1, INT_MAX);
}

static void reset_signals(bool service)
{
	static const int to_others[] = {SIGUSR1, SIGUSR2, SIGHUP};
	struct sigaction action = {.sa_handler = SIG_DFL};
	sigset_t none;

	for (int signal = 1; signal < NSIG; signal++)
		/* A signal that the agent ignores would stay ignored after exec. */
		sigaction(signal, &action, NULL);
	action.sa_handler = SIG_IGN;
	for (size_t i = 0; service && i < sizeof to_others / sizeof *to_others; i++)
		sigaction(to_others[i], &action, NULL);
	/* Only now, when no handler of the agent could run in this process. */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Apply execvp's rules: a missing candidate is skipped; one that may not be executed is
 * remembered. */
static void try_candidates(const struct child_spec *spec)
{
	int remembered = ENOENT;

	for (char **path = spec->candidates; *path; path++) {
		execve(*path, (char *const *)spec->argv, spec->envp);
		if (errno == ENOEXEC) {
			spec->shell_argv[1] = *path;
			/* execvp would give the shell anything. Of a program for another
			 * architecture it prints only syntax errors. */
			if (!executable_is_binary(*path, NULL, 0))
				execve("/bin/sh", spec->shell_argv, spec->envp);
			errno = ENOEXEC;
			return;
		}
		if (errno == EACCES)
			remembered = EACCES;
		else if (errno != ENOENT && errno != ENOTDIR && errno != ESTALE && errno != ENODEV)
			return;
	}
	errno = remembered;
}

_Noreturn void child_run(const struct child_spec *spec)
{
	if (setsid() < 0)
		report_and_exit(spec, CHILD_STAGE_SESSION);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL))
		report_and_exit(spec, CHILD_STAGE_SESSION);
	if (getppid() != spec->parent)
		_exit(CHILD_CANNOT_START); /* the parent died before the child could notice */
	/* If Yama restricts debuggers to their own descendants, allow the agent to attach for the
	 * stack of a rank that hangs. */
	prctl(PR_SET_PTRACER, (unsigned long)spec->parent);
	set_stdio(spec);
	if (spec->has_terminal && ioctl(0, TIOCSCTTY, 0))
		report_and_exit(spec, CHILD_STAGE_STDIO);
	if (spec->cwd && chdir(spec->cwd))
		report_and_exit(spec, CHILD_STAGE_CHDIR);
	if (spec->files)
		setrlimit(RLIMIT_NOFILE, spec->files);
	if (spec->limits)
		limits_apply(spec->limits);
	reset_signals(spec->service);
	try_candidates(spec);
	report_and_exit(spec, CHILD_STAGE_EXEC);
}

/* Why "No such file" although the file exists. May write to text. */
static const char *exec_hint(const char *program, const char *cwd, int error, char *text,
			     size_t size)
{
	bool below = cwd && *program != '/';
	char path[PATH_MAX], interpreter[300];
	struct utsname self;
	struct stat status;

	snprintf(path, sizeof path, "%s%s%s", below ? cwd : "", below ? "/" : "", program);
	if (error == ENOENT && !strchr(program, '/'))
		return "not in PATH, or its interpreter or loader is missing; give the full path";
	if (error == ENOENT &&
	    executable_lacks_interpreter(path, interpreter, sizeof interpreter)) {
		snprintf(text, size,
			 "the file exists, but %s, the interpreter in its first line, does not%s",
			 interpreter, executable_interpreter_hint(interpreter));
		return text;
	}
	if (error == ENOENT && !stat(path, &status))
		return "the file exists, but its dynamic loader does not";
	if (error == EACCES && !stat(path, &status) && S_ISDIR(status.st_mode))
		return "it is a directory";
	if (error == EACCES)
		return "not executable: run chmod +x, or start it with its interpreter";
	if (error == ENOEXEC && executable_is_binary(path, interpreter, sizeof interpreter) &&
	    interpreter[0]) {
		snprintf(text, size, "it is a program for %s, and this machine is %s", interpreter,
			 uname(&self) ? "another" : self.machine);
		return text;
	}
	if (error == ENOEXEC)
		return "neither a program for this architecture nor a script with a #! line";
	if (error == E2BIG)
		return "arguments and environment together are too large";
	return NULL;
}

int child_report_text(const struct child_report *report, const char *program, const char *cwd,
		      char *text, size_t size)
{
	const char *hint = NULL;
	char room[512];

	switch (report->stage) {
	case CHILD_STAGE_CHDIR:
		snprintf(text, size, "cannot start %s: cannot enter directory %s: %s", program,
			 cwd ? cwd : ".", strerror(report->error));
		break;
	case CHILD_STAGE_EXEC:
		hint = exec_hint(program, cwd, report->error, room, sizeof room);
		snprintf(text, size, hint ? "cannot start %s: %s (%s)" : "cannot start %s: %s",
			 program, strerror(report->error), hint);
		break;
	default:
		snprintf(text, size, "cannot start %s: %s failed: %s", program,
			 report->stage == CHILD_STAGE_SESSION
				 ? "creating its session"
				 : "setting up its stdin, stdout and stderr",
			 strerror(report->error));
		break;
	}
	return report->stage == CHILD_STAGE_EXEC && report->error == ENOENT ? CHILD_NOT_FOUND
									    : CHILD_CANNOT_START;
}
