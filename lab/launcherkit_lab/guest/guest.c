/* A guest of a few kilobytes: it says hello on the serial port and then does what its command line says.
 *
 *   pci    lists its PCI bus first, as an operating system finds it: functions, BARs, links, and what bridges lead to
 *   mark   writes to the memory of the test's vGPU, and says what is there before it powers off
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

static inline void out32(unsigned short port, unsigned value)
{
    __asm__ volatile("outl %0, %1" : : "a"(value), "Nd"(port));
}

static inline unsigned in32(unsigned short port)
{
    unsigned value;
    __asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"(port));
    return value;
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

static void say_hex(unsigned value, int digits)
{
    while (digits--)
        out8(0x3f8, "0123456789abcdef"[value >> (digits * 4) & 15]);
}

static unsigned config(unsigned bus, unsigned device, unsigned function, unsigned offset)
{
    out32(0xcf8, 0x80000000u | bus << 16 | device << 11 | function << 8 | offset);
    return in32(0xcfc);
}

static void put_config(unsigned bus, unsigned device, unsigned function, unsigned offset, unsigned value)
{
    out32(0xcf8, 0x80000000u | bus << 16 | device << 11 | function << 8 | offset);
    out32(0xcfc, value);
}

static void say_function(const char *what, unsigned bus, unsigned device, unsigned function)
{
    say("guest: ");
    say(what);
    say(" 0000:");
    say_hex(bus, 2);
    say(":");
    say_hex(device, 2);
    say(".");
    say_hex(function, 1);
    say(" ");
}

/* Each register that is a BAR, and what it says of its size: all ones are written, while nothing is decoded. */
static void list_bars(unsigned bus, unsigned device, unsigned function)
{
    unsigned command = config(bus, device, function, 4) & 0xffff;

    put_config(bus, device, function, 4, command & ~3u);
    for (unsigned offset = 0x10; offset < 0x28; offset += 4) {
        unsigned value = config(bus, device, function, offset), mask;

        put_config(bus, device, function, offset, ~0u);
        mask = config(bus, device, function, offset);
        put_config(bus, device, function, offset, value);
        if (!mask)
            continue;
        say_function("bar", bus, device, function);
        say_hex(offset, 2);
        say(" ");
        say_hex(value, 8);
        say(" ");
        say_hex(mask, 8);
        say("\n");
    }
    put_config(bus, device, function, 4, command);
}

/* The two capabilities that tests ask for, four bytes at a time: PCI Express (10) and a vendor's own (09). */
static void list_capabilities(unsigned bus, unsigned device, unsigned function)
{
    unsigned at = config(bus, device, function, 0x34) & 0xfc;

    if (!(config(bus, device, function, 4) & 0x100000))
        return;
    for (unsigned left = 48; at && left; left--) {
        unsigned head = config(bus, device, function, at), id = head & 0xff;

        if (id == 0x10 || id == 0x09) {
            say_function("capability", bus, device, function);
            for (unsigned offset = 0; offset < (id == 0x10 ? 20 : 8); offset += 4)
                say_hex(config(bus, device, function, at + offset), 8);
            say("\n");
        }
        at = head >> 8 & 0xfc;
    }
}

/* Functions above 0 are looked for only where function 0 says that there are more: nobody else looks either. */
static void list_bus(unsigned bus)
{
    for (unsigned device = 0; device < 32; device++) {
        unsigned functions = 1;
        for (unsigned function = 0; function < functions; function++) {
            unsigned id = config(bus, device, function, 0);
            unsigned header = config(bus, device, function, 12) >> 16 & 0xff;
            if ((id & 0xffff) == 0xffff)
                continue;
            if (function == 0 && header & 0x80)
                functions = 8;
            say_function("pci", bus, device, function);
            say_hex(id & 0xffff, 4);
            say(":");
            say_hex(id >> 16, 4);
            say(" 0x");
            say_hex(config(bus, device, function, 8) >> 8, 6);
            say("\n");
            list_capabilities(bus, device, function);
            if ((header & 0x7f) == 1) { /* a bridge; what is behind it */
                unsigned behind = config(bus, device, function, 0x18) >> 8 & 0xff;

                say_function("bridge", bus, device, function);
                say_hex(behind, 2);
                say("\n");
                list_bus(behind);
            } else if (bus) {
                list_bars(bus, device, function);
            }
        }
    }
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

/* The memory behind BAR 0 of the first function of a model; none where there is no such function. */
static volatile unsigned *memory_of(unsigned bus, unsigned model)
{
    for (unsigned at = 0; at < 256; at++) {
        unsigned device = at >> 3, function = at & 7;
        unsigned id = config(bus, device, function, 0);
        volatile unsigned *found = 0;

        if (id == model)
            return (volatile unsigned *)(config(bus, device, function, 0x10) & ~15u);
        if ((id & 0xffff) != 0xffff && (config(bus, device, function, 12) >> 16 & 0x7f) == 1)
            found = memory_of(config(bus, device, function, 0x18) >> 8 & 0xff, model);
        if (found)
            return found;
    }
    return 0;
}

static volatile unsigned *marked;

static void power_off(void)
{
    if (marked) {
        say("guest: mark ");
        say_hex(*marked, 8);
        say("\n");
    }
    say("guest: off\n");
    out16(0x604, 0x2000);
    for (;;)
        __asm__ volatile("hlt");
}

void guest(const unsigned *multiboot)
{
    const char *line = (const char *)multiboot[4];

    say("guest: hello\n");
    if (holds(line, "pci")) {
        list_bus(0);
        say("guest: listed\n");
    }
    if (holds(line, "mark") && (marked = memory_of(0, 0x7e571234)))
        *marked = 0x1a2b3c4d;
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
