/* A guest of a few kilobytes: it says hello on the serial port and then does what its command line says.
 *
 *   off    powers off at once
 *   wait   powers off when the power button is pressed
 *   deaf   does not hear the power button
 *   panic  tells of a crash, through the pvpanic device
 *
 * Ports of q35 as SeaBIOS sets them up: ACPI's PM1a status is at 0x600, its enable at 0x602, its control at 0x604.
 */

static inline void out8(unsigned short port, unsigned char value)
{
    __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static inline void out16(unsigned short port, unsigned short value)
{
    __asm__ volatile("outw %0, %1" : : "a"(value), "Nd"(port));
}

static inline unsigned short in16(unsigned short port)
{
    unsigned short value;
    __asm__ volatile("inw %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static void say(const char *text)
{
    while (*text)
        out8(0x3f8, *text++);
}

static int holds(const char *line, const char *word)
{
    for (; *line; line++) {
        const char *a = line, *b = word;
        while (*b && *a == *b)
            a++, b++;
        if (!*b)
            return 1;
    }
    return 0;
}

static void power_off(void)
{
    say("guest: off\n");
    out16(0x604, 0x2000);
    for (;;)
        __asm__ volatile("hlt");
}

void guest(const unsigned *multiboot)
{
    const char *line = (const char *)multiboot[4];

    say("guest: hello\n");
    if (holds(line, "panic"))
        out8(0x505, 1);
    if (holds(line, "off"))
        power_off();
    if (holds(line, "wait")) {
        out16(0x602, 0x100); /* or the button's bit stays unset */
        say("guest: waiting\n");
        while (!(in16(0x600) & 0x100))
            ;
        power_off();
    }
    say("guest: deaf\n");
    for (;;)
        __asm__ volatile("pause");
}
