import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('servers', '0004_health_checks'),
    ]

    operations = [
        migrations.CreateModel(
            name='CallTicket',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('holder', models.CharField(db_index=True, max_length=40)),
                ('expires_at', models.DateTimeField()),
            ],
            options={
                'ordering': ['id'],
            },
        ),
        migrations.AddField(
            model_name='callticket',
            name='server',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='servers.server'),
        ),
        migrations.AddIndex(
            model_name='callticket',
            index=models.Index(fields=['server', 'id'], name='ticket_line'),
        ),
    ]
